// SPDX-License-Identifier: Apache-2.0
//
// The gradient noise scale under every way of sharding, beside its definition on whole f64 gradients of each part
// of the batch.                                            [McCandlish et al., arXiv 1812.06162, A.1]

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kuafu/oracle/oracle.h"
#include "tests/engine/whole_layers.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::keys::both;
using tests::keys::tensor;

/// `parts`: gradients that a step sees; experts have `expert_parts`.
struct Case {
  std::string name;
  Overrides overrides;
  int64_t parts, expert_parts = 0;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

std::vector<Case> cases() {
  const auto data = [](const std::string& n, const std::string& stage, const std::string& micro) {
    return Overrides{{"parallel.data", n}, {"parallel.zero", stage}, {"train.micro_batch", micro}};
  };
  const Overrides stages = {{"parallel.pipeline", "2"}, {"train.micro_batch", "3"}};
  const auto mode = [](const std::string& name, const std::string& value) {
    return Overrides{{"parallel.data", "3"}, {"parallel.data." + name, value}};
  };
  return {{"data_3", data("3", "0", "2"), 3},
          {"in_rank_order", both(data("3", "0", "2"), {{"parallel.data.order", "fixed"}}), 6},
          {"ring_sum", mode("mode", "ring"), 3},
          {"servers", both(mode("mode", "parameter_server"), {{"parallel.data.servers", "2"}}), 3},
          {"zero_1", data("3", "1", "2"), 3},
          {"zero_2", data("2", "2", "3"), 4},
          {"zero_3", data("3", "3", "4"), 3},
          {"micro_batches", {{"train.micro_batch", "4"}}, 3},
          {"t1d_2_data_2", both(tensor("1d", "2"), data("2", "0", "6")), 2},
          {"t2d_4_zero_2", both(tensor("2d", "4"), data("2", "2", "6")), 2},
          {"ring_2_data_2", both(tests::keys::sequence("ring", "2"), data("2", "1", "6")), 2},
          {"pipeline_2_data_2", both(stages, {{"parallel.data", "2"}}), 2},
          {"experts_2", both(tests::keys::experts("2"), data("2", "0", "6")), 2, 1},
          {"mixed", both(both(tensor("1d", "2"), stages), data("2", "1", "3")), 2}};
}

Plan plan_of(const Overrides& more) {
  return tests::small_plan(both({{"model.hidden", "36"},
                                 {"model.heads", "6"},
                                 {"model.mlp", "swiglu"},
                                 {"train.batch", "12"},
                                 {"train.steps", "1"},
                                 {"optimizer.clip", "0.25"},
                                 {"train.telemetry", "true"}},
                                more));
}

struct Estimate {
  double variance = 0, square = 0, size = 0;  // size: of what they are differences of
};

/// Of `parts` equal runs of samples: with small batches of b and a big one of B samples, and the
/// gradient of each the mean over its samples,
///     |mean|^2 = (B |G_big|^2 - b |G_small|^2) / (B - b)
///     tr Sigma = (|G_small|^2 - |G_big|^2) / (1 / b - 1 / B).
std::map<std::string, Estimate> definition(const Plan& plan, int64_t parts) {
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  const oracle::Tensors weights = oracle::initial_weights(*model, plan.train.seed);
  const auto data = tests::data_of(plan);
  const int64_t batch = plan.train.batch, each = batch / parts;
  const auto big = static_cast<double>(batch), small = static_cast<double>(each);
  oracle::Tensors sums;
  std::map<std::string, double> small_square;  // mean over the parts
  for (int64_t first = 0; first < batch; first += each) {
    const oracle::Gradients g = oracle::gradients(
        *model, weights,
        {{.tokens = data->train(first, each), .first = first, .step = 0, .batch = batch}});
    for (const auto& [name, shape] : model->weights()) {
      const at::Tensor part = g.gradients.at(name);
      sums[name] = sums.contains(name) ? sums[name] + part : part;
      const auto norms = tests::layer_norms(part * (big / small), shape);
      for (size_t i = 0; i < norms.size(); ++i) {
        small_square[tests::layer_name(name, i, norms.size())] +=
            norms[i] * norms[i] / static_cast<double>(parts);
      }
    }
  }
  std::map<std::string, Estimate> all;
  for (const auto& [name, shape] : model->weights()) {
    const auto norms = tests::layer_norms(sums.at(name), shape);
    for (size_t i = 0; i < norms.size(); ++i) {
      const std::string layer = tests::layer_name(name, i, norms.size());
      const double s = small_square.at(layer), b = norms[i] * norms[i];
      all[layer] = {(s - b) / (1 / small - 1 / big), (big * b - small * s) / (big - small),
                    s * big};
    }
  }
  return all;
}

class NoiseScale : public testing::TestWithParam<Case> {};

TEST_P(NoiseScale, IsThatOfWholeGradients) {
  const Case& c = GetParam();
  const Plan plan = plan_of(c.overrides);
  const TelemetrySeries t = tests::run_plan(plan)[0].telemetry;
  ASSERT_EQ(t.gradient_variance.size(), 1u);
  ASSERT_EQ(t.gradient_square.size(), 1u);
  const auto expected = definition(plan, c.parts);
  double variance = 0, square = 0;
  bool is_whole = true;
  for (size_t i = 0; i < t.layers.size(); ++i) {
    const double v = t.gradient_variance[0][i], s = t.gradient_square[0][i];
    if (c.expert_parts == 1 && t.layers[i].find("experts") != std::string::npos) {
      EXPECT_TRUE(std::isnan(v) && std::isnan(s)) << t.layers[i];
      is_whole = false;
      continue;
    }
    const Estimate& e = expected.at(t.layers[i]);
    const double error = 1e-10 * std::max(e.size, 1e-24);  // of biases of keys: rounding alone
    EXPECT_NEAR(v, e.variance, error) << t.layers[i];
    EXPECT_NEAR(s, e.square, error) << t.layers[i];
    variance += e.variance;
    square += e.square;
  }
  ASSERT_GT(variance, 0);
  const double should = is_whole && square > 0 ? variance / square : 0;
  if (should > 0) {
    EXPECT_NEAR(noise_scale(t, 0), should, 1e-9 * should * std::max(1.0, should));
  } else {
    EXPECT_TRUE(std::isnan(noise_scale(t, 0)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, NoiseScale, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// Of a split backward gradients of two micro-batches come together; of one replica's scheme what is
// summed over its axes has one part: a sum over the other layers would be another number.
TEST(NoiseScale, IsOfAllLayersOrNone) {
  const Overrides four = {{"train.micro_batch", "2"}};
  const auto of = [&](const Overrides& more) {
    return tests::run_plan(plan_of(both(four, more)))[0].telemetry;
  };
  const Overrides stages = {{"parallel.pipeline.size", "2"}};
  const Overrides late = both(stages, {{"parallel.pipeline.schedule", "zero_bubble"}});
  EXPECT_TRUE(of(late).gradient_variance.empty());
  for (const Overrides& partial : {stages, tensor("1d-sp", "2")}) {
    const TelemetrySeries t = of(partial);
    ASSERT_EQ(t.gradient_variance.size(), 1u);
    EXPECT_TRUE(std::isnan(noise_scale(t, 0)));
  }
  EXPECT_FALSE(std::isnan(noise_scale(of({}), 0)));
}

TEST(NoiseScale, OfOnePartThereIsNone) {
  const TelemetrySeries t = tests::run_plan(plan_of({}))[0].telemetry;
  EXPECT_EQ(t.gradient_norm.size(), 1u);
  EXPECT_TRUE(t.gradient_variance.empty());
  EXPECT_TRUE(to_json(t)["noise_scale"].empty());
}

TEST(NoiseScale, ChangesNoBitOfTraining) {
  for (const char* stage : {"0", "1", "2", "3"}) {
    const Overrides keys = {{"parallel.data", "2"},
                            {"parallel.zero", stage},
                            {"model.dtype", "bf16"},
                            {"train.micro_batch", "2"}};
    const auto without = tests::run_plan(tests::small_plan(keys));
    const auto with = tests::run_plan(tests::small_plan(both(keys, {{"train.telemetry", "true"}})));
    EXPECT_EQ(without[0].losses, with[0].losses) << stage;
    EXPECT_EQ(without[0].validation_loss, with[0].validation_loss) << stage;
    EXPECT_EQ(with[0].telemetry.gradient_variance.size(), with[0].losses.size());
  }
  const Overrides alone = {{"train.micro_batch", "2"}};
  const auto without = tests::run_plan(tests::small_plan(alone));
  const auto with = tests::run_plan(tests::small_plan(both(alone, {{"train.telemetry", "true"}})));
  EXPECT_EQ(without[0].losses, with[0].losses);
}

// A loss scale is taken out before anything is estimated.
TEST(NoiseScale, OfAScaledLossIsThatOfTheLoss) {
  const Overrides keys = {{"parallel.data", "2"}, {"model.dtype", "f16"}, {"train.steps", "1"}};
  const auto noise = [&](const char* scale) {
    return noise_scale(tests::run_plan(tests::small_plan(both(
                           keys, {{"train.telemetry", "true"}, {"train.loss_scale", scale}})))[0]
                           .telemetry,
                       0);
  };
  EXPECT_NEAR(noise("64") / noise("1024"), 1, 0.05);
}

}  // namespace
}  // namespace kuafu
