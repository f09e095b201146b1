// SPDX-License-Identifier: Apache-2.0
//
// LLaMA, PaLM, BERT and ViT on one rank against LibTorch's own ops and autograd.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>

#include "kuafu/comm/worlds.h"
#include "tests/support/plans.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::small_plan;

/// Weights of a model as leaves of LibTorch's autograd, and its layers by LibTorch's ops.
struct Reference {
  std::map<std::string, Tensor> w;
  ModelPlan plan;

  Tensor affine(const Tensor& x, const std::string& name) const {
    const Tensor y = at::matmul(x, w.at(name + ".weight"));
    return plan.bias ? y + w.at(name + ".bias") : y;
  }
  Tensor norm(const Tensor& x, const std::string& name) const {
    const Tensor& weight = w.at(name + ".weight");
    if (plan.norm == "rms") return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * weight;
    return at::layer_norm(x, {x.size(-1)}, weight, plan.bias ? w.at(name + ".bias") : Tensor(),
                          1e-5);
  }
  /// x (B, N, S, D): pairs (d, d + D/2) turned by s 10000^(-2 d / D).
  Tensor rotate(const Tensor& x) const {
    if (plan.positions != "rotary") return x;
    const int64_t s = x.size(2), d = x.size(3), half = d / 2;
    const Tensor rate = at::exp(at::arange(half, at::kDouble) * (-2.0 / d * std::log(10000.0)));
    const Tensor angle = at::arange(s, at::kDouble).unsqueeze(1) * rate;
    const Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
    return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
  }
  Tensor attention(const Tensor& x, const std::string& name, bool is_causal) const {
    const int64_t b = x.size(0), s = x.size(1), n = plan.heads, d = plan.hidden / n;
    Tensor q, k, v;
    if (plan.num_kv_heads() == n) {
      const Tensor all = affine(x, name + ".qkv").view({b, s, n, 3, d}).permute({3, 0, 2, 1, 4});
      q = all[0], k = all[1], v = all[2];
    } else {
      const int64_t m = plan.kv_heads;
      q = affine(x, name + ".q").view({b, s, n, d}).transpose(1, 2);
      const Tensor kv = affine(x, name + ".kv").view({b, s, m, 2, d}).permute({3, 0, 2, 1, 4});
      k = kv[0].repeat_interleave(n / m, 1);
      v = kv[1].repeat_interleave(n / m, 1);
    }
    Tensor scores = at::matmul(rotate(q), rotate(k).transpose(2, 3)) / std::sqrt(1.0 * d);
    if (is_causal) scores = scores.masked_fill(at::ones({s, s}, at::kBool).triu(1), -INFINITY);
    const Tensor mixed = at::matmul(at::softmax(scores, 3), v);
    return affine(mixed.transpose(1, 2).reshape({b, s, n * d}), name + ".out");
  }
  Tensor mlp(const Tensor& x, const std::string& name) const {
    const Tensor up = affine(x, name + ".up");
    if (plan.mlp == "gelu") return affine(at::gelu(up, "tanh"), name + ".down");
    const Tensor pairs = up.view({up.size(0), up.size(1), -1, 2});
    return affine(at::silu(pairs.select(3, 0)) * pairs.select(3, 1), name + ".down");
  }
  Tensor layers(Tensor x, bool is_causal, bool is_post_norm) const {
    for (int64_t i = 0; i < plan.layers; ++i) {
      const std::string name = text("blocks.", i);
      if (plan.parallel_blocks) {
        const Tensor n = norm(x, name + ".norm1");
        x = x + attention(n, name + ".attn", is_causal) + mlp(n, name + ".mlp");
      } else if (is_post_norm) {
        x = norm(x + attention(x, name + ".attn", is_causal), name + ".norm1");
        x = norm(x + mlp(x, name + ".mlp"), name + ".norm2");
      } else {
        x = x + attention(norm(x, name + ".norm1"), name + ".attn", is_causal);
        x = x + mlp(norm(x, name + ".norm2"), name + ".mlp");
      }
    }
    return x;
  }
  Tensor embed(const Tensor& ids) const {
    const Tensor x = at::embedding(w.at("embedding.tokens"), ids);
    return plan.positions == "rotary" ? x : x + w.at("embedding.positions");
  }
  Tensor logits(const Tensor& x) const { return at::matmul(x, w.at("embedding.tokens").t()); }
};

/// Mean of -log softmax(logits)[target] over the targets that are no -1.
Tensor mean_loss(const Tensor& logits, const Tensor& targets) {
  const Tensor counts = targets.ge(0);
  const Tensor each = at::log_softmax(logits, -1).gather(-1, targets.clamp_min(0).unsqueeze(-1));
  return -each.squeeze(-1).masked_select(counts).mean();
}

Tensor tensor_of(const std::vector<int64_t>& v, int64_t rows) {
  return at::tensor(v, at::kLong).view({rows, -1});
}

Tensor gpt_loss(const Reference& r, const Tokens& t) {
  const Tensor x = r.layers(r.embed(tensor_of(t.inputs, t.samples)), true, false);
  return mean_loss(r.logits(r.norm(x, "head.norm")), tensor_of(t.targets, t.samples));
}

Tensor bert_loss(const Reference& r, const Tokens& t) {
  const Tensor segments = tensor_of(t.segments, t.samples);
  Tensor x = r.embed(tensor_of(t.inputs, t.samples)) +
             at::embedding(r.w.at("embedding.segments"), segments);
  x = r.layers(r.norm(x, "embedding.norm"), false, true);
  const Tensor y = r.norm(at::gelu(r.affine(x, "head.transform"), "tanh"), "head.norm");
  const Tensor hidden = r.plan.bias ? r.logits(y) + r.w.at("head.bias") : r.logits(y);
  const Tensor pooled = at::tanh(r.affine(x.select(1, 0), "head.pooler"));
  return mean_loss(hidden, tensor_of(t.targets, t.samples)) +
         mean_loss(r.affine(pooled, "head.answer"), at::tensor(t.labels, at::kLong));
}

Tensor vit_loss(const Reference& r, const Tokens& t) {
  const Tensor patches =
      at::tensor(at::ArrayRef<float>(t.images)).view({t.samples, t.patches, t.pixels});
  const Tensor embedded = r.affine(patches.to(at::kDouble), "embedding.patches");
  const Tensor first = r.w.at("embedding.class").expand({t.samples, 1, r.plan.hidden});
  Tensor x = at::cat({first, embedded}, 1);
  if (r.plan.positions != "rotary") x = x + r.w.at("embedding.positions");
  const Tensor token = r.norm(r.layers(x, false, false).select(1, 0), "head.norm");
  return mean_loss(r.affine(token, "head.classes"), at::tensor(t.labels, at::kLong));
}

struct ReferenceCase {
  const char* name;
  Tensor (*loss)(const Reference&, const Tokens&);
  Overrides overrides;
};
std::ostream& operator<<(std::ostream& out, const ReferenceCase& c) { return out << c.name; }

class ModelReference : public testing::TestWithParam<ReferenceCase> {};

TEST_P(ModelReference, EqualsLibTorchsOwnOps) {
  const Plan plan = small_plan(GetParam().overrides);
  const Registries registries = builtin_registries();
  const auto world = make_self();
  const auto data = tests::data_of(plan);
  Engine engine(plan, registries, *world, *data, {});
  Reference reference{{}, plan.model};
  for (Param* p : engine.params()) {
    reference.w[p->name] = p->value.detach().clone().requires_grad_();
  }
  const Tensor loss = GetParam().loss(reference, data->train(0, plan.train.batch));
  loss.backward();
  EXPECT_NEAR(engine.forward_backward() / loss.item<double>(), 1, 1000 * tests::kEps);
  double scale = 0;
  for (const auto& [name, value] : reference.w) {
    ASSERT_TRUE(value.grad().defined()) << name << " has no part in the reference";
    scale = std::max(scale, value.grad().abs().max().item<double>());
  }
  // Longest reduction: 96 tokens or 128 columns, chained through two blocks and a head.
  for (Param* p : engine.params()) {
    const Tensor expected = reference.w.at(p->name).grad();
    const double far = (p->value.grad() - expected).abs().max().item<double>();
    EXPECT_LE(far, 8 * 128 * 3 * tests::kEps * scale) << p->name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelReference,
                         testing::Values(ReferenceCase{"llama",
                                                       gpt_loss,
                                                       {{"model.norm", "rms"},
                                                        {"model.mlp", "swiglu"},
                                                        {"model.positions", "rotary"},
                                                        {"model.bias", "false"},
                                                        {"model.kv_heads", "2"}}},
                                         ReferenceCase{"palm",
                                                       gpt_loss,
                                                       {{"model.parallel_blocks", "true"},
                                                        {"model.mlp", "swiglu"},
                                                        {"model.positions", "rotary"},
                                                        {"model.bias", "false"},
                                                        {"model.kv_heads", "1"}}},
                                         ReferenceCase{"bert", bert_loss, {{"model.kind", "bert"}}},
                                         ReferenceCase{
                                             "bert_grouped",
                                             bert_loss,
                                             {{"model.kind", "bert"}, {"model.kv_heads", "2"}}},
                                         ReferenceCase{"vit",
                                                       vit_loss,
                                                       {{"model.kind", "vit"},
                                                        {"model.vocab", "256"},
                                                        {"model.image", "12"},
                                                        {"model.sequence", "10"}}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
