// SPDX-License-Identifier: Apache-2.0
//
// Every update rule under every way of sharding: certified step by step, and trained beside the
// oracle in f64.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include <ATen/ATen.h>

#include "kuafu/optim/rule.h"
#include "kuafu/oracle/oracle.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::keys::both;

/// Fused matrices of three and of two, widths that no power of two divides, a padded vocabulary.
const Overrides kModel = {{"model.hidden", "36"},  {"model.heads", "6"},
                          {"model.mlp", "swiglu"}, {"train.batch", "12"},
                          {"train.steps", "5"},    {"optimizer.epsilon", "0.01"}};

std::vector<Family> rules() {
  const std::string kind = "optimizer.kind", lr = "optimizer.lr";
  return {{"adam", {{kind, "adam"}}},
          {"sgd", {{kind, "sgd"}, {lr, "0.1"}}},
          {"nesterov", {{kind, "sgd"}, {lr, "0.1"}, {"optimizer.nesterov", "true"}}},
          {"adamw_vectors", {{kind, "adamw"}, {"optimizer.exclude", "vectors"}}},
          {"lars", {{kind, "lars"}, {lr, "1"}, {"optimizer.coefficient", "0.02"}}},
          {"lars_all", {{kind, "lars"}, {lr, "0.5"}, {"optimizer.exclude", "none"}}},
          {"lamb", {{kind, "lamb"}}},
          {"muon", {{kind, "muon"}, {lr, "0.02"}, {"optimizer.nesterov", "true"}}},
          {"muon_plain",
           {{kind, "muon"},
            {lr, "0.02"},
            {"optimizer.momentum", "0.95"},
            {"optimizer.adam_lr", "0.01"},
            {"optimizer.exclude", "none"}}},
          {"lamb_plain",
           {{kind, "lamb"},
            {"optimizer.bias_correction", "false"},
            {"optimizer.exclude", "none"},
            {"optimizer.ratio_min", "0.2"},
            {"optimizer.ratio_max", "0.8"}}}};
}

/// What implementations do otherwise, several at once.
std::vector<Family> variants() {
  const std::string kind = "optimizer.kind", lr = "optimizer.lr", bound = "optimizer.bound";
  const auto of = [&](const std::string& rule, const Overrides& keys) {
    return both({{kind, rule}}, keys);
  };
  const Overrides corrected = {{"optimizer.correction_in", "rate"}};
  return {
      {"lamb_rate", of("lamb", both(corrected, {{bound, "none"}}))},
      {"lars_step", of("lars", {{lr, "1"},
                                {"optimizer.coefficient", "0.02"},
                                {"optimizer.rate_in", "step"},
                                {"optimizer.denominator", "norm_of_sum"},
                                {bound, "ratio"},
                                {"optimizer.ratio_max", "0.5"},
                                {"optimizer.clip_elements", "0.01"}})},
      {"lars_at_most_lr", of("lars", {{lr, "0.1"},
                                      {"optimizer.coefficient", "0.02"},
                                      {"optimizer.rate_in", "step"},
                                      {bound, "rate"}})},
      {"lars_outside", of("lars", {{lr, "1"},
                                   {"optimizer.coefficient", "0.02"},
                                   {"optimizer.rate_in", "step_with_ratio"},
                                   {bound, "ratio"},
                                   {"optimizer.ratio_max", "0.5"},
                                   {"optimizer.clip_elements", "0.01"}})},
      {"lamb_weights", of("lamb", {{"optimizer.bias_correction", "false"},
                                   {bound, "weights"},
                                   {"optimizer.ratio_min", "0.3"},
                                   {"optimizer.ratio_max", "2"},
                                   {"optimizer.scaled_layers", "all"},
                                   // A key's bias has a gradient of rounding alone, which a norm
                                   // kept above 0.3 would follow.
                                   {"model.bias", "false"}})},
      {"lamb_decayed",
       of("lamb", {{"optimizer.scaled_layers", "decayed"}, {"optimizer.weight_decay", "0"}})},
      {"adam_rate", of("adam", corrected)},
      {"adamw_rate", of("adamw", corrected)},
      {"sgd_dampened", of("sgd", {{lr, "0.1"}, {"optimizer.dampening", "0.5"}})},
      {"muon_size", of("muon", {{lr, "0.02"},
                                {"optimizer.matrix_scale", "size"},
                                {"optimizer.coefficients", "polar"}})}};
}

/// Epsilon has a meaning with moments alone.
Overrides model_for(const Family& rule) {
  Overrides out = kModel;
  const bool has_moments = rule.name.starts_with("ada") || rule.name.starts_with("lamb") ||
                           rule.name.starts_with("muon");
  if (!has_moments) out.pop_back();
  return out;
}

const Family& rule_named(const std::string& name) {
  static const std::vector<Family> all = rules();
  return *std::find_if(all.begin(), all.end(), [&](const Family& f) { return f.name == name; });
}

Plan ruled_plan(const Family& rule, const Family& sharding, const Overrides& more) {
  return tests::small_plan(
      both(both(model_for(rule), sharding.overrides), both(rule.overrides, more)));
}

/// The run of a plan by the oracle, all samples of a step at once; one for all shardings.
struct TrainedByOracle {
  std::vector<double> losses;
  oracle::Tensors weights;
};
const TrainedByOracle& train_by_oracle(const std::string& key, const Plan& plan) {
  static std::map<std::string, TrainedByOracle> known;
  if (const auto found = known.find(key); found != known.end()) return found->second;
  TrainedByOracle& t = known[key];
  const auto model = oracle::make_model(plan.model, plan.train.seed);
  const auto data = tests::data_of(plan);
  const int64_t batch = plan.train.batch;
  t.weights = oracle::initial_weights(*model, plan.train.seed);
  oracle::State state;
  for (int64_t step = 0; step < plan.train.steps; ++step) {
    const oracle::Samples all{
        .tokens = data->train(step * batch, batch), .first = 0, .step = step, .batch = batch};
    const oracle::Gradients g = oracle::gradients(*model, t.weights, {all});
    t.losses.push_back(g.loss);
    const double lr = oracle::learning_rate(plan.optimizer, step, plan.schedule_steps(), batch);
    oracle::update(plan.optimizer, lr, oracle::norm_of(g.gradients), g.gradients, t.weights, state,
                   model->weights());
  }
  return t;
}

// Losses and parameters of a whole run in f64, without looking at its steps: sums in other orders,
// whose roundings five steps amplify.
void expect_trained_as_by_oracle(const Family& rule, const Family& sharding) {
  const Plan plan = ruled_plan(rule, sharding, {{"optimizer.warmup", "2"}});
  const TrainedByOracle& expected = train_by_oracle(rule.name + plan.model.kind, plan);
  const tests::Trained found = tests::train(plan);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t t = 0; t < found.losses.size(); ++t) {
    EXPECT_NEAR(found.losses[t] / expected.losses[t], 1, 1e-12) << rule.name << ", step " << t;
  }
  ASSERT_EQ(found.parameters.size(), expected.weights.size());
  for (const auto& [name, w] : expected.weights) {
    const double far = (found.parameters.at(name) - w).abs().max().item<double>();
    EXPECT_LE(far, 1e-12 * w.abs().max().item<double>()) << rule.name << ", " << name;
  }
}

// Step by step, in f32 beside its f64 twin.
void expect_certified(const Family& rule, const Family& sharding, const std::string& dtype) {
  const Plan plan = ruled_plan(rule, sharding, {{"model.dtype", dtype}, {"train.steps", "3"}});
  const Certificate c = tests::certificate_of(plan);
  EXPECT_EQ(c.verdict, "equal") << rule.name << " " << dtype << ": " << c.describe() << "; native "
                                << c.native.describe();
  EXPECT_EQ(c.native.verdict, "equal") << rule.name << " " << dtype;
}

TEST(Optimizers, EachKindHasARowHere) {
  for (const std::string& kind : builtin_optimizers().names()) {
    const std::vector<Family> all = rules();
    const bool has_row = std::any_of(all.begin(), all.end(), [&](const Family& f) {
      return f.overrides.at(0) == std::pair<std::string, std::string>("optimizer.kind", kind);
    });
    EXPECT_TRUE(has_row) << kind << ": add it to rules()";
  }
}

class OptimizerUnderShards : public testing::TestWithParam<Family> {};

TEST_P(OptimizerUnderShards, TrainsByNormsOfLayersAsTheOracleDoes) {
  for (const char* name : {"lars_all", "lamb_plain"}) {
    expect_trained_as_by_oracle(rule_named(name), GetParam());
  }
}

TEST_P(OptimizerUnderShards, TrainsAsTheOracleDoesByEveryRule) {
  for (const Family& rule : rules()) expect_trained_as_by_oracle(rule, GetParam());
}

TEST_P(OptimizerUnderShards, IsCertifiedByEveryRule) {
  for (const Family& rule : rules()) expect_certified(rule, GetParam(), "f32");
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerUnderShards, testing::ValuesIn(tests::shardings()),
                         [](const auto& info) { return info.param.name; });

TEST(Optimizers, OfHalfPrecisionAndScaledLossesAreCertified) {
  const Family zero = {"zero_1", {{"parallel.data", "2"}, {"parallel.zero", "1"}}};
  for (const Family& rule : rules()) {
    for (const char* dtype : {"bf16", "f16"}) expect_certified(rule, zero, dtype);
  }
}

TEST(Optimizers, AreCertifiedOnAxesOfAllKinds) {
  for (const Family& rule : rules()) expect_certified(rule, tests::sharding("mixed"), "f32");
}

TEST(Optimizers, FollowEverySchedule) {
  for (const Overrides& schedule :
       std::vector<Overrides>{{{"optimizer.schedule", "linear"}, {"optimizer.scale_lr", "linear"}},
                              {{"optimizer.schedule", "polynomial"}, {"optimizer.power", "3"}},
                              {{"optimizer.schedule", "step"}, {"optimizer.drop_every", "2"}},
                              {{"optimizer.schedule", "cosine"},
                               {"optimizer.warmup", "1"},
                               {"optimizer.rewarm_at", "2"}},
                              {{"optimizer.warmup", "2"},
                               {"optimizer.warmup_unit", "epochs"},
                               {"optimizer.epoch", "13"}},
                              {{"optimizer.scale_lr", "sqrt"}, {"optimizer.base_batch", "4"}}}) {
    const Certificate c = tests::certificate_of(
        tests::small_plan(both({{"parallel.data", "2"}, {"train.steps", "5"}}, schedule)));
    EXPECT_EQ(c.verdict, "equal") << schedule[0].second << ": " << c.describe();
  }
}

class MatricesUnderShards : public testing::TestWithParam<Family> {};

TEST_P(MatricesUnderShards, TrainAsTheOracleDoes) {
  expect_trained_as_by_oracle(rule_named("muon"), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, MatricesUnderShards, testing::ValuesIn(tests::shardings()),
                         [](const auto& info) { return info.param.name; });

TEST(Optimizers, OfWholeMatricesAreCertified) {
  for (const char* name : {"pipeline_2", "ring_3"}) {
    expect_certified(rule_named("muon"), tests::sharding(name), "f32");
  }
  // Experts, each a matrix, and a mixture's router.
  const Overrides experts = both(tests::keys::experts("1"), {{"parallel.data", "2"}});
  expect_certified(rule_named("muon"), {"data_3", experts}, "f32");
}

TEST(VariantsOfOptimizers, AreCertified) {
  for (const Family& rule : variants()) expect_certified(rule, tests::sharding("zero_1"), "f32");
}

TEST(VariantsOfOptimizers, AreCertifiedUnderShards) {
  for (const char* sharding : {"t1d_2", "pipeline_2", "zero_3", "experts_2"}) {
    for (const Family& rule : variants()) expect_certified(rule, tests::sharding(sharding), "f32");
  }
}

TEST(VariantsOfOptimizers, AreCertifiedUnderEveryOtherShards) {
  const std::vector<std::string> done = {"one_rank",   "zero_1", "t1d_2",
                                         "pipeline_2", "zero_3", "experts_2"};
  for (const Family& sharding : tests::shardings()) {
    if (std::find(done.begin(), done.end(), sharding.name) != done.end()) continue;
    for (const Family& rule : variants()) expect_certified(rule, sharding, "f32");
  }
}

TEST(VariantsOfOptimizers, OfHalfPrecisionAreCertified) {
  for (const Family& rule : variants()) {
    for (const char* dtype : {"bf16", "f16"}) {
      expect_certified(rule, tests::sharding("zero_1"), dtype);
    }
  }
}

TEST(VariantsOfOptimizers, TrainAsTheOracleDoesUnderShards) {
  for (const char* sharding : {"zero_1", "t1d_2", "pipeline_2"}) {
    for (const Family& rule : variants())
      expect_trained_as_by_oracle(rule, tests::sharding(sharding));
  }
}

TEST(Optimizers, ByLayersAreRefusedUnderStaleness) {
  for (const char* kind : {"lars", "lamb", "muon"}) {
    const Overrides stale = {{"parallel.data", "2"},
                             {"parallel.data.mode", "parameter_server"},
                             {"parallel.data.staleness", "1"},
                             {"optimizer.clip", "0"},
                             {"optimizer.kind", kind}};
    try {
      tests::small_plan(stale);
      ADD_FAILURE() << kind << " was taken";
    } catch (const Refused& e) {
      const std::string words = e.what();
      EXPECT_NE(words.find("the norm of a layer"), std::string::npos) << words;
      EXPECT_NE(words.find("nearest: kind = \"adamw\", \"sgd\""), std::string::npos) << words;
    }
  }
}

}  // namespace
}  // namespace kuafu
