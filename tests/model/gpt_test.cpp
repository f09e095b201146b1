// SPDX-License-Identifier: Apache-2.0
//
// GPT on one rank against LibTorch's own ops and against difference quotients; that other plans
// equal one rank is the business of certificates.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <set>

#include "kuafu/comm/worlds.h"
#include "tests/support/plans.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::plan_of;
using tests::small_plan;

using Weights = std::map<std::string, Tensor>;

/// One engine on one rank.
struct OneRank {
  explicit OneRank(const Plan& p)
      : plan(p), data(tests::data_of(p)), engine(plan, registries, *world, *data, {}) {}

  Weights weights() {
    Weights all;
    for (Param* p : engine.params()) all[p->name] = p->value;
    return all;
  }

  Plan plan;
  Registries registries = builtin_registries();
  std::unique_ptr<Communicator> world = make_self();
  std::unique_ptr<Dataset> data;
  Engine engine;
};

Tensor norm(const Tensor& x, const Weights& w, const std::string& name) {
  return at::layer_norm(x, {x.size(2)}, w.at(name + ".weight"), w.at(name + ".bias"), 1e-5);
}
Tensor affine(const Tensor& x, const Weights& w, const std::string& name) {
  return at::matmul(x, w.at(name + ".weight")) + w.at(name + ".bias");
}

/// Mean cross entropy of GPT-2, by LibTorch's ops and autograd.
Tensor reference_loss(const Weights& w, const Plan& plan, const Tensor& tokens,
                      const Tensor& targets) {
  const int64_t b = tokens.size(0), s = tokens.size(1), h = plan.model.hidden;
  const int64_t n = plan.model.heads, d = h / n;
  const Tensor hidden = at::ones({s, s}, at::kBool).triu(1);
  Tensor x = at::embedding(w.at("embedding.tokens"), tokens) + w.at("embedding.positions");
  for (int64_t layer = 0; layer < plan.model.layers; ++layer) {
    const std::string name = text("blocks.", layer);
    const Tensor qkv = affine(norm(x, w, name + ".norm1"), w, name + ".attn.qkv")
                           .view({b, s, n, 3, d})
                           .permute({3, 0, 2, 1, 4});  // columns of one head together
    const Tensor scores = at::matmul(qkv[0], qkv[1].transpose(2, 3)) / std::sqrt(1.0 * d);
    const Tensor weights = at::softmax(scores.masked_fill(hidden, -INFINITY), 3);
    const Tensor mixed = at::matmul(weights, qkv[2]).transpose(1, 2).reshape({b, s, h});
    x = x + affine(mixed, w, name + ".attn.out");
    const Tensor up = affine(norm(x, w, name + ".norm2"), w, name + ".mlp.up");
    x = x + affine(at::gelu(up, "tanh"), w, name + ".mlp.down");
  }
  const Tensor logits = at::matmul(norm(x, w, "head.norm"), w.at("embedding.tokens").t());
  return -at::log_softmax(logits, 2).gather(2, targets.unsqueeze(2)).mean();
}

Tensor to_tensor(const std::vector<int64_t>& v, int64_t rows) {
  return at::tensor(v, at::kLong).view({rows, -1});
}

TEST(Gpt, EqualsLibTorchsOwnOps) {
  OneRank me(small_plan());
  Weights w;
  for (const auto& [name, value] : me.weights()) {
    w[name] = value.detach().clone().requires_grad_();
  }
  const Tokens tokens = me.data->train(0, me.plan.train.batch);
  const Tensor loss = reference_loss(w, me.plan, to_tensor(tokens.inputs, tokens.samples),
                                     to_tensor(tokens.targets, tokens.samples));
  loss.backward();
  EXPECT_NEAR(me.engine.forward_backward() / loss.item<double>(), 1, 1000 * tests::kEps);
  // Longest reduction: 96 tokens, chained through two blocks. Gradients that are zero in exact
  // arithmetic (key biases) are rounding alone, hence the common scale of all.
  double scale = 0;
  for (const auto& [name, value] : w)
    scale = std::max(scale, value.grad().abs().max().item<double>());
  for (const auto& [name, value] : me.weights()) {
    const double far = (value.grad() - w.at(name).grad()).abs().max().item<double>();
    EXPECT_LE(far, 8 * 96 * 3 * tests::kEps * scale) << name;
  }
}

// Independent of any autograd: (L(w + h) - L(w - h)) / 2h, whose error is h^2 |L'''| / 6 + eps L /
// h.
TEST(Gpt, GradientsEqualDifferenceQuotients) {
  OneRank me(small_plan({{"model.dropout", "0.2"}}));
  me.engine.forward_backward();
  std::map<std::string, Tensor> gradients;
  for (const auto& [name, value] : me.weights()) {
    gradients[name] = value.grad().clone();
    value.mutable_grad() = Tensor();
  }
  constexpr double kStep = 1e-5;
  for (auto& [name, value] : me.weights()) {
    const int64_t at = gradients[name].abs().argmax().item<int64_t>();
    double* element = value.data_ptr<double>() + at;
    const double here = *element;
    const auto loss_at = [&](double x) {
      *element = x;
      const double loss = me.engine.forward_backward();
      for (const auto& [other, v] : me.weights()) v.mutable_grad() = Tensor();
      return loss;
    };
    const double quotient = (loss_at(here + kStep) - loss_at(here - kStep)) / (2 * kStep);
    *element = here;
    const double exact = gradients[name].view(-1)[at].item<double>();
    EXPECT_NEAR(quotient, exact, 1e-5 * std::abs(exact) + 1e-9) << name;
  }
}

TEST(Gpt, HasTwelveHSquaredAndThirteenHParametersALayer) {
  OneRank me(small_plan({{"model.layers", "3"}}));
  int64_t in_blocks = 0, all = 0;
  std::set<std::string> names;
  for (const Param* p : me.engine.params()) {
    all += p->value.numel();
    if (p->name.find("blocks.") == 0) in_blocks += p->value.numel();
    EXPECT_TRUE(names.insert(p->name).second) << p->name << " is named twice";
  }
  constexpr int64_t h = 32;
  EXPECT_EQ(in_blocks, 3 * (12 * h * h + 13 * h));
  EXPECT_EQ(all, in_blocks + (37 + 12) * h + 2 * h);  // table, positions, last norm
}

TEST(Gpt, UntrainedLossIsNearLogVocab) {
  OneRank me(small_plan());
  EXPECT_NEAR(me.engine.forward_backward(), std::log(37.0), 0.1);
}

TEST(Gpt, WeightsAreTheSameUnderEveryPlan) {
  const tests::Trained expected = tests::train([] {
    Plan p = small_plan();
    p.train.steps = 0;
    return p;
  }());
  for (const tests::Family& f : tests::families()) {
    Plan plan = plan_of(f);
    plan.train.steps = 0;
    const tests::Trained start = tests::train(plan);
    EXPECT_TRUE(tests::is_same(start, expected)) << f;
  }
}

// A token does not see what comes after it: the stream at earlier positions keeps its bits.
TEST(Gpt, IsCausal) {
  const Plan plan = small_plan();
  const Registries registries = builtin_registries();
  const Mesh mesh({}, 0);
  const auto scheme = make_serial(mesh);
  const auto attention = make_local_attention(Recompute::kNone);
  const Context ctx{mesh, *scheme, *attention, {.mesh = &mesh, .dtype = DType::kF64}};
  const Model model = registries.models.find("gpt")(plan.model, ctx);
  const auto stream_of = [&](const Tensor& tokens) {
    Side side;
    side.tokens = side.targets = tokens;
    side.batch = tokens.size(0);
    side.sequence = tokens.size(1);
    Flow flow;
    for (size_t b = 0; b + 1 < model.blocks.size(); ++b)
      flow = model.blocks[b]->forward(flow, side);
    return flow[0].detach();
  };
  const Tensor tokens = tests::ids(2, 12, 37, 9), changed = tokens.clone();
  changed.narrow(1, 7, 5).add_(1).remainder_(37);
  const Tensor a = stream_of(tokens), b = stream_of(changed);
  EXPECT_TRUE(tests::is_same(a.narrow(1, 0, 7), b.narrow(1, 0, 7)));
  EXPECT_FALSE(tests::is_same(a.narrow(1, 7, 1), b.narrow(1, 7, 1)));
}

}  // namespace
}  // namespace kuafu
