// SPDX-License-Identifier: Apache-2.0
//
// GPT-2 and its relatives.        [Radford et al., 2019; 12 H^2 + 13 H parameters a layer]
//
//   tokens -> embedding + positions -> [ x + attention(norm1(x)); x + mlp(norm2(x)) ] x layers
//          -> final norm -> logits = x table^T (tied) -> cross entropy
//
// Options of the plan make it a LLaMA (rms, rotary, swiglu, kv_heads, no biases) or a PaLM
// (parallel blocks, one key-value head, swiglu, no biases).
// Written once: it asks for expand and contract and knows no scheme.

#include <map>

#include "kuafu/model/blocks.h"
#include "kuafu/plan/kind_names.h"

namespace kuafu {
namespace {

Model make_gpt(const ModelPlan& plan, const Context& ctx) {
  check_block(ctx, plan);
  Model model;
  auto embedding = std::make_unique<Embedding>(ctx, plan);
  Param& table = embedding->table();
  model.blocks.push_back(std::move(embedding));
  append_layers(model, plan, ctx);
  model.blocks.push_back(std::make_unique<Head>(ctx, plan, table));
  model.loss_axes = loss_axes(ctx, Stream::kInner);
  return model;
}

}  // namespace

void register_models(Registry<MakeModel>& models) {
  const std::map<std::string, MakeModel> makers = {{model_kinds::kGpt, make_gpt},
                                                   {model_kinds::kMoeGpt, make_gpt},
                                                   {model_kinds::kBert, make_bert},
                                                   {model_kinds::kVit, make_vit}};
  for (const ModelKind& kind : builtin_model_kinds()) {
    models.add(kind.name, kind.summary, code_of(makers, kind.name));
  }
}

}  // namespace kuafu
