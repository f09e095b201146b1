// SPDX-License-Identifier: Apache-2.0
//
// GPT-2 and its relatives.        [Radford et al., 2019; 12 H^2 + 13 H parameters a layer]
//
//   tokens -> embedding + positions -> [ x + attention(norm1(x)); x + mlp(norm2(x)) ] x layers
//          -> final norm -> logits = x table^T (tied, or a table of the head) -> cross entropy
//
// Options of the plan make it a LLaMA (rms, rotary, swiglu, kv_heads, no biases) or a PaLM
// (parallel blocks, one key-value head, swiglu, no biases); kind "opt" an OPT, whose positions begin
// at row 2, by options with the norms after the sums and a narrower table between two projections.
//                                                               [Zhang et al., arXiv 2205.01068]
// Written once: it asks for expand and contract and knows no scheme.

#include "kuafu/model/blocks.h"

namespace kuafu {

Model make_gpt(const ModelPlan& plan, const Context& ctx) {
  check_block(ctx, plan);
  Model model;
  auto embedding = std::make_unique<Embedding>(ctx, plan);
  Param& table = embedding->table();
  model.blocks.push_back(std::move(embedding));
  append_layers(model, plan, ctx,
                {.norm = plan.post_norm ? NormPlace::kAfterSum : NormPlace::kBeforeBranch});
  model.blocks.push_back(std::make_unique<Head>(ctx, plan, table));
  model.loss_axes = loss_axes(ctx, Stream::kInner);
  return model;
}

}  // namespace kuafu
