// SPDX-License-Identifier: Apache-2.0
//
// Update rules against loops over single numbers, element by element.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "kuafu/oracle/oracle.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::kEps;

constexpr int64_t kCount = 5;

double gradient_of(int64_t i, int64_t t) { return std::sin(1.0 + i + 3.0 * t) * std::pow(10, -i); }
double first_of(int64_t i) { return 0.3 * i - 0.5; }

Tensor tensor_of(const std::function<double(int64_t)>& f, at::ScalarType type = at::kDouble) {
  std::vector<double> v;
  for (int64_t i = 0; i < kCount; ++i) v.push_back(f(i));
  return at::tensor(v, at::kDouble).to(type);
}

/// Weights after `steps` updates with the gradients above, and the state.
struct Updated {
  oracle::Tensors weights;
  oracle::State state;
};
Updated updated(const OptimizerPlan& plan, int64_t steps, at::ScalarType type = at::kDouble) {
  Updated u;
  u.weights["w"] = tensor_of(first_of, type);
  for (int64_t t = 0; t < steps; ++t) {
    const oracle::Tensors g = {{"w", tensor_of([t](int64_t i) { return gradient_of(i, t); })}};
    oracle::update(plan, plan.lr, oracle::norm_of(g), g, u.weights, u.state);
  }
  return u;
}

TEST(OracleOptimizer, AdamWIsItsLoop) {
  const OptimizerPlan plan = {
      .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1, .clip = 0};
  const Updated u = updated(plan, 4);
  for (int64_t i = 0; i < kCount; ++i) {
    double w = first_of(i), m = 0, v = 0;
    for (int64_t t = 0; t < 4; ++t) {
      const double g = gradient_of(i, t);
      m = 0.8 * m + 0.2 * g;
      v = 0.95 * v + 0.05 * g * g;
      const double step = m / (1 - std::pow(0.8, t + 1)) /
                          (std::sqrt(v / (1 - std::pow(0.95, t + 1))) + plan.epsilon);
      w -= 0.01 * 0.1 * w + 0.01 * step;
    }
    // A dozen roundings a step.
    EXPECT_NEAR(u.weights.at("w")[i].item<double>(), w, 4 * 12 * kEps) << i;
  }
  EXPECT_EQ(u.state.num_steps, 4);
  EXPECT_EQ(u.state.slots.size(), 2u);
}

TEST(OracleOptimizer, SgdIsItsLoop) {
  const OptimizerPlan plan = {
      .kind = "sgd", .lr = 0.1, .momentum = 0.7, .weight_decay = 0.2, .clip = 0};
  const Updated u = updated(plan, 4);
  for (int64_t i = 0; i < kCount; ++i) {
    double w = first_of(i), velocity = 0;
    for (int64_t t = 0; t < 4; ++t) {
      velocity = 0.7 * velocity + gradient_of(i, t) + 0.2 * w;
      w -= 0.1 * velocity;
    }
    EXPECT_NEAR(u.weights.at("w")[i].item<double>(), w, 4 * 12 * kEps) << i;
  }
  EXPECT_EQ(u.state.slots.begin()->first, "velocity");
}

TEST(OracleOptimizer, ClipsTheNormOfAllTensorsTogether) {
  const OptimizerPlan plan = {.kind = "sgd", .lr = 1, .momentum = 0, .weight_decay = 0, .clip = 1};
  const oracle::Tensors g = {{"a", at::full({1}, 3.0, at::kDouble)},
                             {"b", at::full({1}, 4.0, at::kDouble)}};
  EXPECT_EQ(oracle::norm_of(g), 5);
  oracle::Tensors w = {{"a", at::zeros({1}, at::kDouble)}, {"b", at::zeros({1}, at::kDouble)}};
  oracle::State state;
  oracle::update(plan, 1, 5, g, w, state);
  EXPECT_NEAR(w["a"].item<double>(), -0.6, kEps);
  EXPECT_NEAR(w["b"].item<double>(), -0.8, kEps);
}

TEST(OracleOptimizer, LeavesSmallGradientsAndClipZeroAlone) {
  for (const double clip : {0.0, 10.0}) {
    const OptimizerPlan plan = {
        .kind = "sgd", .lr = 1, .momentum = 0, .weight_decay = 0, .clip = clip};
    const oracle::Tensors g = {{"a", at::full({1}, 3.0, at::kDouble)}};
    oracle::Tensors w = {{"a", at::zeros({1}, at::kDouble)}};
    oracle::State state;
    oracle::update(plan, 1, 3, g, w, state);
    EXPECT_EQ(w["a"].item<double>(), -3);
  }
}

// lr 1e-4 of a weight near 1 is lost in bf16's 8 bits: ten steps of it are not.
TEST(OracleOptimizer, MastersKeepWhatHalfPrecisionWeightsLose) {
  const OptimizerPlan plan = {.lr = 1e-4, .weight_decay = 0, .clip = 0};
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const Updated u = updated(plan, 10, type);
    const Tensor& master = u.state.slots.at("master").at("w");
    EXPECT_EQ(master.scalar_type(), at::kFloat);
    EXPECT_EQ(u.weights.at("w").scalar_type(), type);
    EXPECT_TRUE(u.weights.at("w").equal(master.to(type)));
    EXPECT_FALSE(master.equal(tensor_of(first_of, type).to(at::kFloat)));
  }
}

TEST(OracleOptimizer, LeavesWeightsWithoutGradient) {
  oracle::Tensors w = {{"a", at::ones({1}, at::kDouble)}, {"b", at::ones({1}, at::kDouble)}};
  oracle::State state;
  oracle::update({}, 0.1, 1, {{"a", at::ones({1}, at::kDouble)}}, w, state);
  EXPECT_LT(w["a"].item<double>(), 1);
  EXPECT_EQ(w["b"].item<double>(), 1);
}

TEST(OracleOptimizer, RefusesKindsItDoesNotKnow) {
  oracle::Tensors w;
  oracle::State state;
  EXPECT_THROW(oracle::update({.kind = "lion"}, 1, 1, {}, w, state), ConfigError);
  EXPECT_THROW(oracle::learning_rate({.schedule = "sine"}, 0, 1), ConfigError);
}

TEST(OracleSchedule, WarmsUpThenFallsAlongACosine) {
  const OptimizerPlan plan = {.lr = 2, .schedule = "cosine", .warmup = 4, .min_lr_ratio = 0.25};
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 0, 21), 0.5);
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 3, 21), 2);
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 4, 21), 2);
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 12, 21), 1.25);  // half way: the mean of 2 and 0.5
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 20, 21), 0.5);
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 30, 21), 0.5);
  EXPECT_DOUBLE_EQ(oracle::learning_rate({.lr = 2}, 1000, 10), 2);
}

TEST(OracleSchedule, FallsByAPowerALineOrSteps) {
  OptimizerPlan plan = {.lr = 2, .schedule = "linear", .warmup = 4, .min_lr_ratio = 0.25};
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 12, 21), 1.25);
  plan.schedule = "polynomial";
  plan.power = 2;
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 12, 21), 0.875);  // 0.5 + 1.5 / 4
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 20, 21), 0.5);
  plan.schedule = "step";
  plan.drop_every = 10;
  plan.drop_factor = 0.1;
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 13, 21), 2);
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 14, 21), 0.2);
}

TEST(OracleSchedule, WarmsUpByEpochsAndAgain) {
  OptimizerPlan plan = {.lr = 2, .warmup = 3, .warmup_unit = "epochs", .epoch = 5};
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 0, 21, 4), 0.5);  // 15 samples: 4 steps
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 3, 21, 4), 2);
  EXPECT_THROW(oracle::learning_rate(plan, 0, 21), InternalError);
  plan.schedule = "cosine";
  plan.min_lr_ratio = 0.25;
  plan.rewarm_at = 10;
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 9, 21, 4), 0.5);  // the end of the first part
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 10, 21, 4), 0.5);
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 14, 21, 4), 2);
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 17, 21, 4), 1.25);  // half way from 14 to 20
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 20, 21, 4), 0.5);
}

TEST(OracleSchedule, FollowsTheBatch) {
  OptimizerPlan plan = {.lr = 0.3, .scale_lr = "linear", .base_batch = 8};
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 0, 1, 32), 1.2);
  plan.scale_lr = "sqrt";
  EXPECT_DOUBLE_EQ(oracle::learning_rate(plan, 0, 1, 32), 0.6);
}

/// (2, 1, 4): two experts, each with two matrices of one row in turns of one column.
TEST(OracleOptimizer, NormsAreThoseOfLayers) {
  const oracle::Weight weight = {.shape = {2, 1, 4}, .is_stacked = true, .fused = 2};
  const Tensor t =
      at::tensor({3.0, 5.0, 4.0, 12.0, 8.0, 0.0, 6.0, 1.0}, at::kDouble).view({2, 1, 4});
  const Tensor norms = at::tensor({5.0, 13.0, 5.0, 13.0, 10.0, 1.0, 10.0, 1.0}, at::kDouble);
  EXPECT_TRUE(oracle::norms_of_layers(t, weight).flatten().equal(norms));
}

// Singular values s of a gradient that is diagonal go, one by one, through the quintic five times; the
// columns of two matrices take turns.
TEST(OracleOptimizer, MuonIsItsFormulaOnSingularValues) {
  const double s[] = {3, 4, 12}, norm = 13, lr = 0.5;
  Tensor g = at::zeros({3, 8}, at::kDouble);
  for (int64_t i = 0; i < 3; ++i) g[i][2 * i] = s[i];  // the even columns are one of the matrices
  oracle::Tensors w = {{"blocks.0.w", at::zeros({3, 8}, at::kDouble)}};
  oracle::State state;
  const OptimizerPlan muon = {.kind = "muon", .lr = lr, .weight_decay = 0, .clip = 0};
  oracle::update(muon, lr, 0, {{"blocks.0.w", g}}, w, state,
                 {{"blocks.0.w", {.shape = {3, 8}, .fused = 2}}});
  for (int64_t i = 0; i < 3; ++i) {
    double x = s[i] / (norm + 1e-7);
    for (int n = 0; n < 5; ++n) x = 3.4445 * x - 4.7750 * x * x * x + 2.0315 * x * x * x * x * x;
    EXPECT_GT(x, 0.68);
    EXPECT_LT(x, 1.2);
    const double wide = std::sqrt(4.0 / 3.0);
    EXPECT_NEAR(w.at("blocks.0.w")[i][2 * i].item<double>(), -lr * wide * x, 1e-14) << i;
    w.at("blocks.0.w")[i][2 * i] = 0;
  }
  EXPECT_LT(w.at("blocks.0.w").abs().max().item<double>(), 1e-14);
  EXPECT_FALSE(state.slots.contains("m"));
  oracle::Tensors table = {{"embedding.w", at::zeros({3, 8}, at::kDouble)}};
  oracle::update(muon, lr, 0, {{"embedding.w", g}}, table, state);
  EXPECT_TRUE(state.slots.contains("m"));
}

// One layer (0.6, 0.8) of norm 1; by hand.
TEST(OracleOptimizer, LarsAndLambAreTheirFormulas) {
  const oracle::Tensors g = {{"w", at::tensor({0.0, 2.0}, at::kDouble).view({1, 2})}};
  const Tensor start = at::tensor({0.6, 0.8}, at::kDouble).view({1, 2});
  oracle::Tensors w = {{"w", start}};
  oracle::State state;
  OptimizerPlan lars = {.kind = "lars", .momentum = 0.9, .coefficient = 0.1};
  lars.weight_decay = 0.5, lars.clip = 0;
  oracle::update(lars, 0.25, 0, g, w, state);
  const double ratio = 0.1 * 1 / (2 + 0.5 * 1);  // eta |w| / (|g| + beta |w|)
  EXPECT_NEAR(w["w"][0][0].item<double>(), 0.6 - 0.25 * ratio * (0.5 * 0.6), kEps);
  EXPECT_NEAR(w["w"][0][1].item<double>(), 0.8 - 0.25 * ratio * (2 + 0.5 * 0.8), kEps);

  OptimizerPlan lamb = {.kind = "lamb", .weight_decay = 0.5, .clip = 0};
  for (const double most : {10.0, 0.1}) {
    lamb.ratio_max = most;
    w = {{"w", start}};
    state = {};
    oracle::update(lamb, 0.25, 0, g, w, state);
    const double r0 = 0.3, r1 = 2 / (2 + 1e-8) + 0.4;  // Adam's first direction is the sign
    const double trust = std::min(most, 1 / std::hypot(r0, r1));
    EXPECT_NEAR(w["w"][0][0].item<double>(), 0.6 - 0.25 * trust * r0, 4 * kEps);
    EXPECT_NEAR(w["w"][0][1].item<double>(), 0.8 - 0.25 * trust * r1, 4 * kEps);
  }
}

TEST(OracleOptimizer, LeavesVectorsOutWhereThePlanSaysSo) {
  const oracle::Weight vector = {.shape = {4}}, matrix = {.shape = {2, 2}};
  const oracle::Weight stacked = {.shape = {2, 2}, .is_stacked = true};
  for (const char* kind : {"sgd", "adamw", "lars", "lamb"}) {
    const bool scales = std::string(kind).starts_with("la");
    EXPECT_EQ(oracle::is_excluded({.kind = kind}, vector), scales);
    EXPECT_EQ(oracle::is_excluded({.kind = kind}, stacked), scales);
    EXPECT_FALSE(oracle::is_excluded({.kind = kind}, matrix));
    EXPECT_FALSE(oracle::is_excluded({.kind = kind, .exclude = "none"}, vector));
    EXPECT_TRUE(oracle::is_excluded({.kind = kind, .exclude = "vectors"}, vector));
  }
}

}  // namespace
}  // namespace kuafu
