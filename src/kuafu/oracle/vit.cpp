// SPDX-License-Identifier: Apache-2.0
//
// Vision transformer.                            [Dosovitskiy et al., arXiv 2010.11929, section 3.1]
//
//   z_0 = [x_class; x_1 E; ... x_N E] + E_pos                                [equation 1]
//   z'_l = attention(norm(z_(l-1))) + z_(l-1), z_l = mlp(norm(z'_l)) + z'_l  [equations 2 and 3]
//   y = norm(z_L^0) -> classes -> cross entropy                              [equation 4]

#include <ATen/ATen.h>

#include "kuafu/oracle/transformer.h"

namespace kuafu::oracle {
namespace {

class Vit : public Transformer {
 public:
  using Transformer::Transformer;

  Weights weights() const override {
    Weights all;
    add_linear(all, plan(), "embedding.patches", {3 * plan().patch * plan().patch, plan().hidden});
    all["embedding.class"] = {.shape = {plan().hidden}};
    if (plan().positions == "learned") {
      all["embedding.positions"] = {.shape = {plan().sequence, plan().hidden}};
    }
    for (int64_t i = 0; i < plan().layers; ++i) {
      add_pre_norm_layer(all, plan(), layer_name(i));
      add_mlp(all, plan(), layer_name(i) + ".mlp", plan().ffn_width());
    }
    add_norm(all, plan(), "head.norm");
    add_linear(all, plan(), "head.classes", {plan().hidden, plan().classes});
    return all;
  }

 protected:
  Tensor embed(const Call& call) const override {
    const Tokens& t = call.samples.tokens;
    const Tensor& token = call.weight("embedding.class");
    const Tensor images = at::tensor(at::ArrayRef<float>(t.images), at::kFloat)
                              .view({t.samples, t.patches, t.pixels})
                              .to(token.options());
    const Tensor first = token.expand({t.samples, 1, plan().hidden});
    note_terms(call, first, "embedding.class",
               [](const Tensor& dy) { return widened(dy).abs().sum(0).sum(0); });
    const Tensor x = at::cat({first, linear(call, images, "embedding.patches")}, 1);
    const bool is_learned = plan().positions == "learned";
    return dropout(call, is_learned ? add_positions(call, x, "embedding.positions") : x,
                   "embedding");
  }

  Tensor layer(const Call& call, const Tensor& x, int64_t index) const override {
    const std::string name = layer_name(index);
    return pre_norm_layer(call, x, name, Sees::kAll,
                          [&](const Tensor& n) { return mlp(call, n, name + ".mlp"); });
  }

  Tensor loss(const Call& call, const Tensor& x) const override {
    const Tensor logits = linear(call, norm(call, x.select(1, 0), "head.norm"), "head.classes");
    const Tensor labels = at::tensor(call.samples.tokens.labels, at::kLong);
    return cross_entropy(logits, labels, call.per_sample());
  }

  bool is_tied() const override { return false; }
};

}  // namespace

std::unique_ptr<Model> make_vit(const ModelPlan& plan, uint64_t seed) {
  return std::make_unique<Vit>(plan, seed);
}

}  // namespace kuafu::oracle
