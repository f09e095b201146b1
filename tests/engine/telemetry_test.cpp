// SPDX-License-Identifier: Apache-2.0
//
// Norms of layers under every way of sharding, beside whole tensors of the oracle in f64.

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "kuafu/oracle/oracle.h"
#include "tests/engine/whole_layers.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::keys::both;

/// Fused matrices of three and of two, a padded vocabulary; no clipping, no momentum.
const Overrides kModel = {{"model.hidden", "36"},     {"model.heads", "6"},
                          {"model.mlp", "swiglu"},    {"train.batch", "12"},
                          {"train.steps", "3"},       {"optimizer.weight_decay", "0.1"},
                          {"optimizer.clip", "0.25"}, {"train.telemetry", "true"}};

/// Without ratios: elementwise, and of whole matrices.
std::vector<Family> other_rules() {
  return {{"sgd", {{"optimizer.kind", "sgd"}, {"optimizer.nesterov", "true"}}},
          {"adam", {{"optimizer.kind", "adam"}, {"optimizer.epsilon", "0.01"}}},
          {"adamw", {{"optimizer.kind", "adamw"}, {"optimizer.epsilon", "0.01"}}},
          {"muon", {{"optimizer.kind", "muon"}, {"optimizer.epsilon", "0.01"}}}};
}

/// With ratios. An epsilon that is far above the rounding of a gradient, which a root else divides.
std::vector<Family> rules_by_layers() {
  const Overrides lamb = {
      {"optimizer.kind", "lamb"}, {"optimizer.lr", "0.02"}, {"optimizer.epsilon", "0.01"}};
  return {{"lars",
           {{"optimizer.kind", "lars"}, {"optimizer.lr", "1"}, {"optimizer.coefficient", "0.02"}}},
          {"lamb", lamb},
          {"lamb_bounded", both(lamb, {{"optimizer.bias_correction", "false"},
                                       {"optimizer.exclude", "none"},
                                       {"optimizer.ratio_min", "0.2"},
                                       {"optimizer.ratio_max", "0.8"}})},
          {"lamb_rate", both(lamb, {{"optimizer.correction_in", "rate"},
                                    {"optimizer.bound", "none"},
                                    {"optimizer.scaled_layers", "all"}})}};
}

struct Figures {
  double gradient = 0, weight = 0, update = 0, ratio = 0;
};
using Step = std::map<std::string, Figures>;  // by layer

/// What one step does to whole tensors, which it updates.
Step step_of_oracle(const Plan& plan, const oracle::Model& model, int64_t step,
                    oracle::Tensors& weights, oracle::State& state) {
  const auto data = tests::data_of(plan);
  const int64_t batch = plan.train.batch;
  const oracle::Samples all{
      .tokens = data->train(step * batch, batch), .first = 0, .step = step, .batch = batch};
  const oracle::Gradients g = oracle::gradients(model, weights, {all});
  oracle::Tensors before;
  for (const auto& [name, w] : weights) before[name] = w.clone();
  const double lr = oracle::learning_rate(plan.optimizer, step, plan.schedule_steps(), batch);
  oracle::Trust trust;
  oracle::update(plan.optimizer, lr, oracle::norm_of(g.gradients), g.gradients, weights, state,
                 model.weights(), &trust);
  Step out;
  for (const auto& [name, shape] : model.weights()) {
    const auto of = [&shape = shape](const Tensor& t) { return tests::layer_norms(t, shape); };
    const auto gradient = of(g.gradients.at(name)), weight = of(before.at(name));
    const auto change = of(weights.at(name) - before.at(name));
    const Tensor one = at::ones_like(before.at(name));
    const auto scaled = trust.ratio.find(name);  // none of rules without ratios
    const auto ones = of(one), ratio = of(scaled == trust.ratio.end() ? one : scaled->second);
    for (size_t i = 0; i < gradient.size(); ++i) {
      out[tests::layer_name(name, i, gradient.size())] = {
          gradient[i], weight[i], change[i] / weight[i], ratio[i] / ones[i]};
    }
  }
  return out;
}

void expect_that_of_whole_tensors(const Family& rule, const Family& sharding) {
  const Plan plan = tests::small_plan(both(both(kModel, rule.overrides), sharding.overrides));
  const std::vector<RankResult> ranks = tests::run_plan(plan);
  const TelemetrySeries& t = ranks[0].telemetry;
  for (const RankResult& r : ranks) EXPECT_EQ(to_text(r.telemetry), to_text(t));
  ASSERT_EQ(t.steps, (std::vector<int64_t>{0, 1, 2}));
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  oracle::Tensors weights = oracle::initial_weights(*model, plan.train.seed);
  oracle::State state;
  const bool has_ratios = !t.trust_ratio.empty();
  int64_t scaled = 0;  // layers and steps with a ratio of their own
  for (size_t s = 0; s < t.steps.size(); ++s) {
    const Step expected = step_of_oracle(plan, *model, t.steps[s], weights, state);
    ASSERT_EQ(t.layers.size(), expected.size());
    for (size_t i = 0; i < t.layers.size(); ++i) {
      const auto found = expected.find(t.layers[i]);
      ASSERT_NE(found, expected.end()) << t.layers[i];
      const Figures& e = found->second;
      // A quotient of layers is well conditioned; an iteration to orthogonal matrices is less so.
      const double close = rule.name == "muon" ? 1e-8 : 1e-12;
      const auto expect = [&](const char* what, double is, double should) {
        EXPECT_NEAR(is, should, close * std::max(should, 0.01))
            << rule.name << ": " << what << " of " << t.layers[i] << ", step " << s;
      };
      expect("gradient", t.gradient_norm[s][i], e.gradient);
      expect("weight", t.weight_norm[s][i], e.weight);
      if (e.gradient < 1e-12) continue;  // a bias of keys: rounding alone
      if (has_ratios) expect("ratio", t.trust_ratio[s][i], e.ratio);
      scaled += e.ratio == 1 ? 0 : 1;
      if (e.weight > 0) {
        expect("update", t.update_ratio[s][i], e.update);
      } else {
        EXPECT_TRUE(std::isnan(t.update_ratio[s][i])) << t.layers[i];
      }
    }
  }
  if (has_ratios) {
    EXPECT_GT(scaled, 20) << rule.name;
  }
}

class TelemetryUnderShards : public testing::TestWithParam<Family> {};

TEST_P(TelemetryUnderShards, IsThatOfWholeTensors) {
  for (const Family& rule : rules_by_layers()) expect_that_of_whole_tensors(rule, GetParam());
}

TEST_P(TelemetryUnderShards, OfOtherRulesIsThatOfWholeTensorsToo) {
  for (const Family& rule : other_rules()) expect_that_of_whole_tensors(rule, GetParam());
}

/// The first step, whose weights are those of f64 but for their last bits; of half precision what is
/// updated is the master copy.
TEST(Telemetry, InEveryTypeIsThatOfF64) {
  std::vector<Family> rules = rules_by_layers();
  for (const Family& other : other_rules()) rules.push_back(other);
  for (const Family& rule : rules) {
    for (const char* sharding : {"one_rank", "zero_3", "t1d_2"}) {
      const Overrides base =
          both(both(kModel, rule.overrides), tests::sharding(sharding).overrides);
      const auto of = [&](const char* type) {
        const Overrides keys = {{"model.dtype", type}, {"train.loss_scale", "1024"}};
        const bool is_wide = std::string(type) == "f64" || std::string(type) == "f32";
        return tests::run_plan(tests::small_plan(
            both(base, is_wide ? Overrides{{"model.dtype", type}} : keys)))[0]
            .telemetry;
      };
      const TelemetrySeries exact = of("f64");
      for (const auto& [type, share] : {std::pair{"f32", 2e-3}, {"f16", 0.02}, {"bf16", 0.12}}) {
        const TelemetrySeries t = of(type);
        for (size_t i = 0; i < exact.layers.size(); ++i) {
          const double gradient = exact.gradient_norm[0][i];
          if (gradient < 1e-6) continue;  // a bias of keys: rounding alone
          // What is updated is rounded to f32, or f64.
          const auto expect = [&](const char* what, double is, double should, double least = 0) {
            EXPECT_NEAR(is, should, share * std::abs(should) + least)
                << rule.name << ", " << sharding << ", " << type << ": " << what << " of "
                << exact.layers[i];
          };
          expect("gradient", t.gradient_norm[0][i], gradient);
          expect("weight", t.weight_norm[0][i], exact.weight_norm[0][i]);
          if (exact.weight_norm[0][i] > 0) {
            expect("update", t.update_ratio[0][i], exact.update_ratio[0][i], 0x1p-24);
          }
          if (!exact.trust_ratio.empty()) {
            expect("ratio", t.trust_ratio[0][i], exact.trust_ratio[0][i]);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TelemetryUnderShards, testing::ValuesIn(tests::shardings()),
                         [](const auto& info) { return info.param.name; });

// One all-reduce an axis that splits layers, and one over the stages; no bit of the training.
TEST(Telemetry, CostsOneSumAnAxisAndNoBitOfTraining) {
  for (const char* kind : {"adamw", "lamb", "muon"}) {
    const Overrides keys = {{"parallel.data", "2"},        {"parallel.zero", "1"},
                            {"parallel.pipeline", "2"},    {"parallel.tensor.mode", "1d"},
                            {"parallel.tensor.size", "2"}, {"optimizer.kind", kind},
                            {"model.dtype", "f32"},        {"train.micro_batch", "2"}};
    const auto without = tests::run_plan(tests::small_plan(keys));
    const auto with = tests::run_plan(tests::small_plan(both(keys, {{"train.telemetry", "true"}})));
    ASSERT_EQ(without.size(), with.size());
    for (size_t r = 0; r < with.size(); ++r) {
      EXPECT_EQ(without[r].losses, with[r].losses) << kind;
      EXPECT_EQ(without[r].validation_loss, with[r].validation_loss) << kind;
      EXPECT_TRUE(without[r].telemetry.is_empty());
      EXPECT_EQ(with[r].telemetry.trust_ratio.empty(), std::string(kind) != "lamb");
      for (const char* axis : {"data", "tensor", "pipeline"}) {
        auto calls = without[r].traffic.at(axis).calls;
        calls["all_reduce"] += 3;  // steps
        EXPECT_EQ(calls, with[r].traffic.at(axis).calls) << kind << ", " << axis;
      }
    }
  }
}

TEST(Telemetry, OfASkippedStepIsNoNumber) {
  const Plan plan = tests::small_plan({{"parallel.data", "2"},
                                       {"model.dtype", "f16"},
                                       {"train.loss_scale_start", "1e15"},
                                       {"train.loss_scale", "dynamic"},
                                       {"train.telemetry", "true"}});
  const RankResult r = tests::run_plan(plan)[0];
  ASSERT_FALSE(r.skipped.empty());
  for (const int64_t step : r.skipped) {
    for (const double x : r.telemetry.gradient_norm.at(static_cast<size_t>(step))) {
      EXPECT_TRUE(std::isnan(x));
    }
  }
}

// Three stages of dependency: the global norm, by which gradients are clipped; the norms of layers,
// which their ratios follow from; what the update was, with all else that telemetry tells.
TEST(NormsOfAStep, TakeOneAllReduceAnAxisAndStage) {
  const auto calls = [](const Overrides& more) {
    const Overrides keys = {{"parallel.data", "2"},
                            {"parallel.zero", "1"},
                            {"parallel.tensor.mode", "1d"},
                            {"parallel.tensor.size", "2"},
                            {"train.validation_batches", "0"},
                            {"train.micro_batch", "2"}};
    std::map<std::string, int64_t> out;
    const std::vector<RankResult> ranks = tests::run_plan(tests::small_plan(both(keys, more)));
    for (const auto& [axis, t] : ranks[0].traffic) {
      const auto found = t.calls.find("all_reduce");
      out[axis] = found == t.calls.end() ? 0 : found->second;
    }
    return out;
  };
  const int64_t steps = tests::small_plan({}).train.steps;
  const auto plain = calls({{"optimizer.kind", "sgd"}});
  for (const char* axis : {"data", "tensor"}) {
    EXPECT_GE(plain.at(axis), steps);
    for (const char* kind : {"lars", "lamb"}) {
      const auto scaled = calls({{"optimizer.kind", kind}});
      const auto told = calls({{"optimizer.kind", kind}, {"train.telemetry", "true"}});
      EXPECT_EQ(scaled.at(axis), plain.at(axis) + steps) << kind << ", " << axis;
      EXPECT_EQ(told.at(axis), scaled.at(axis) + steps) << kind << ", " << axis;
    }
  }
}

TEST(Telemetry, IsReadAsItWasWrittenUpToAStepAndRefusedWhereItIsDamaged) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  TelemetrySeries t;
  t.layers = {"a", "b[0]"};
  t.add(0, {{0.1, 2}, {1, 0}, {0.3, kNone}, {}, {}, {}});
  t.add(1, {{0.2, 3}, {1, 1}, {0.4, 0.5}, {}, {7, kNone}, {1, 2}});
  EXPECT_TRUE(std::isnan(t.gradient_variance.at(0).at(1)));
  EXPECT_EQ(to_text(telemetry_from(to_text(t), t.layers, 2, "x")), to_text(t));
  EXPECT_EQ(telemetry_from(to_text(t), t.layers, 1, "x").steps, std::vector<int64_t>{0});
  std::string damaged = to_text(t);
  damaged.replace(damaged.find("[0,1]"), 5, "[1,0]");
  EXPECT_THROW(telemetry_from(damaged, t.layers, 2, "x"), ConfigError);
  EXPECT_THROW(telemetry_from("{}", t.layers, 2, "x"), ConfigError);
  EXPECT_THROW(telemetry_from(to_text(t), {"a", "b"}, 2, "x"), ConfigError);
  EXPECT_THROW(telemetry_from(to_text(t), {"a", "b[0]", "c"}, 2, "x"), ConfigError);
}

TEST(Telemetry, IsRefusedUnderStaleness) {
  try {
    tests::small_plan({{"parallel.data", "2"},
                       {"parallel.data.mode", "parameter_server"},
                       {"parallel.data.staleness", "1"},
                       {"optimizer.clip", "0"},
                       {"train.telemetry", "true"}});
    ADD_FAILURE() << "it was taken";
  } catch (const ConfigError& e) {
    const std::string words = e.what();
    EXPECT_NE(words.find("train.telemetry = true with parallel.data.staleness = 1"),
              std::string::npos)
        << words;
  }
}

}  // namespace
}  // namespace kuafu
