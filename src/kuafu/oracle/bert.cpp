// SPDX-License-Identifier: Apache-2.0
//
// BERT.                                                     [Devlin et al., arXiv 1810.04805]
//
//   x = norm(token + position + segment)                                    [figure 2]
//   x = norm1(x + attention(x)); x = norm2(x + mlp(x)), every token sees every other
//                                            [Vaswani et al., arXiv 1706.03762, section 3.1]
//   hidden tokens: norm(activation(x W)) table^T + bias -> cross entropy           [section 3.1, task 1]
//   next sentence: tanh(x_0 W) -> 2 classes -> cross entropy                 [section 3.1, task 2]
//
// The activation is the MLP's; beside SwiGLU it is gelu.
// The loss is the sum of the mean masked-token and the mean next-sentence loss [appendix A.2].

#include <ATen/ATen.h>

#include "kuafu/oracle/transformer.h"

namespace kuafu::oracle {
namespace {

class Bert : public Transformer {
 public:
  using Transformer::Transformer;

  Weights weights() const override {
    const int64_t h = plan().hidden;
    Weights all;
    add_embedding(all, plan());
    all["embedding.segments"] = {.shape = {2, h}};
    add_norm(all, plan(), "embedding.norm");
    for (int64_t i = 0; i < plan().layers; ++i) {
      const std::string name = layer_name(i);
      add_attention(all, plan(), name + ".attn");
      add_norm(all, plan(), name + ".norm1");
      add_mlp(all, plan(), name + ".mlp", plan().ffn_width());
      add_norm(all, plan(), name + ".norm2");
    }
    add_linear(all, plan(), "head.transform", {h, h});
    add_norm(all, plan(), "head.norm");
    if (plan().bias) all["head.bias"] = {.shape = {plan().vocab}, .init = Weight::Init::kZeros};
    add_linear(all, plan(), "head.pooler", {h, h});
    add_linear(all, plan(), "head.answer", {h, 2});
    return all;
  }

 protected:
  Tensor embed(const Call& call) const override {
    const Tensor segments = ids(call.samples, call.samples.tokens.segments);
    const Tensor x = embed_tokens(call) + lookup(call, segments, "embedding.segments");
    return dropout(call, norm(call, x, "embedding.norm"), "embedding");
  }

  Tensor layer(const Call& call, const Tensor& x, int64_t index) const override {
    return post_norm_layer(call, x, layer_name(index), Sees::kAll);
  }

  Tensor loss(const Call& call, const Tensor& x) const override {
    const Tokens& tokens = call.samples.tokens;
    const Tensor inner = linear(call, x, "head.transform");
    const bool is_gated = plan().mlp == "swiglu";
    const Tensor y =
        norm(call, is_gated ? gelu_tanh(inner) : activation(plan(), inner), "head.norm");
    Tensor logits = tied_linear(call, y, "embedding.tokens");
    if (plan().bias) logits = add_bias(call, logits, "head.bias");
    const Tensor pooled = linear(call, x.select(1, 0), "head.pooler").tanh();
    const Tensor answers = linear(call, pooled, "head.answer");
    return cross_entropy(logits, ids(call.samples, tokens.targets), call.per_token()) +
           cross_entropy(answers, at::tensor(tokens.labels, at::kLong), call.per_sample());
  }
};

}  // namespace

std::unique_ptr<Model> make_bert(const ModelPlan& plan, uint64_t seed) {
  return std::make_unique<Bert>(plan, seed);
}

}  // namespace kuafu::oracle
