// SPDX-License-Identifier: Apache-2.0
//
// GPT-2.                        [Radford et al., 2019, section 2.3; Radford et al., 2018, section 3]
//
//   h_0 = U W_e + W_p
//   h_l = transformer_block(h_(l-1))            for l in 1 .. n          [2018, equation 2]
//   P(u) = softmax(norm(h_n) W_e^T), or by a table of the head's own
//
// The norm stands before each branch and once more at the end. LLaMA [Touvron et al., 2302.13971,
// section 2.2] is RMS norm, SwiGLU and rotary positions in the same places; PaLM [2204.02311,
// section 2] has both branches side by side and one key-value head.

#include "kuafu/oracle/transformer.h"

namespace kuafu::oracle {

Tensor embed_tokens(const Call& call) {
  const Tensor x = lookup(call, ids(call.samples, call.samples.tokens.inputs), "embedding.tokens");
  return call.plan.positions == "rotary" ? x : add_positions(call, x, "embedding.positions");
}

void add_embedding(Weights& to, const ModelPlan& plan) {
  to["embedding.tokens"] = {.shape = {plan.vocab, plan.hidden}};
  if (plan.positions == "rotary") return;
  to["embedding.positions"] = {.shape = {plan.sequence, plan.hidden}};
}

Tensor pre_norm_layer(const Call& call, const Tensor& x, const std::string& name, Sees sees,
                      const std::function<Tensor(const Tensor&)>& feed) {
  const auto attend = [&](const Tensor& n) {
    return dropout(call, attention(call, n, name + ".attn", sees), name + ".attn");
  };
  const auto transform = [&](const Tensor& n) { return dropout(call, feed(n), name + ".mlp"); };
  const Tensor n = norm(call, x, name + ".norm1");
  if (call.plan.parallel_blocks) return x + attend(n) + transform(n);
  const Tensor y = x + attend(n);
  return y + transform(norm(call, y, name + ".norm2"));
}

void add_pre_norm_layer(Weights& to, const ModelPlan& plan, const std::string& name) {
  add_norm(to, plan, name + ".norm1");
  add_attention(to, plan, name + ".attn");
  if (!plan.parallel_blocks) add_norm(to, plan, name + ".norm2");
}

Tensor post_norm_layer(const Call& call, const Tensor& x, const std::string& name, Sees sees) {
  const Tensor attended = attention(call, x, name + ".attn", sees);
  const Tensor y = norm(call, x + dropout(call, attended, name + ".attn"), name + ".norm1");
  const Tensor fed = mlp(call, y, name + ".mlp");
  return norm(call, y + dropout(call, fed, name + ".mlp"), name + ".norm2");
}

Weights Gpt::weights() const {
  Weights all;
  add_embedding(all, plan());
  for (int64_t i = 0; i < plan().layers; ++i) {
    add_pre_norm_layer(all, plan(), layer_name(i));
    add_feed(all, i);
  }
  add_norm(all, plan(), "head.norm");
  if (!plan().tied) all["head.tokens"] = all["embedding.tokens"];
  return all;
}

Tensor Gpt::embed(const Call& call) const { return dropout(call, embed_tokens(call), "embedding"); }

Tensor Gpt::layer(const Call& call, const Tensor& x, int64_t index) const {
  return pre_norm_layer(call, x, layer_name(index), Sees::kEarlier,
                        [&](const Tensor& n) { return feed(call, n, index); });
}

Tensor Gpt::feed(const Call& call, const Tensor& x, int64_t index) const {
  return mlp(call, x, layer_name(index) + ".mlp");
}

void Gpt::add_feed(Weights& to, int64_t index) const {
  add_mlp(to, plan(), layer_name(index) + ".mlp", plan().ffn_width());
}

Tensor Gpt::loss(const Call& call, const Tensor& x) const {
  return surprise(call, norm(call, x, "head.norm"));
}

Tensor Gpt::surprise(const Call& call, const Tensor& x) const {
  const Tensor logits = tied_linear(call, x, plan().tied ? "embedding.tokens" : "head.tokens");
  if (call.extra.logits != nullptr) *call.extra.logits = logits;
  return cross_entropy(logits, ids(call.samples, call.samples.tokens.targets), call.per_token());
}

std::unique_ptr<Model> make_gpt(const ModelPlan& plan, uint64_t seed) {
  return std::make_unique<Gpt>(plan, seed);
}

}  // namespace kuafu::oracle
