// SPDX-License-Identifier: Apache-2.0
//
// Every plan has a miniature: small, legal, with the same features.

#include "kuafu/engine/miniature.h"

#include <gtest/gtest.h>

#include "tests/engine/large_plans.h"

namespace kuafu {
namespace {

Plan plan_with(const Overrides& overrides) {
  const Registries registries = builtin_registries();
  const TensorModes modes = registries.tensor_modes();
  Overrides all = {{"data.kind", "synthetic"}};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return resolve(parse_plan("", "plan", modes, all, registries.models.names()), 0, modes);
}

/// Elements of weights and of the activations of a micro-batch, roughly.
double size_of(const Plan& p) {
  const ModelPlan& m = p.model;
  const auto width = static_cast<double>(m.hidden), layers = static_cast<double>(m.layers);
  // MLPs of all layers: a mixture has one for each expert, and those that all tokens visit.
  const int64_t mixtures = m.kind == "moe_gpt" ? m.layers / m.moe_every : 0;
  const auto mlps = static_cast<double>(m.layers + mixtures * (m.experts + m.shared_experts - 1));
  const auto tokens = static_cast<double>(p.train.batch * m.sequence);
  const auto vocab = m.kind == "vit" ? 1.0 : static_cast<double>(m.vocab);
  return layers * 4 * width * width + mlps * 3 * width * static_cast<double>(m.ffn_width()) +
         vocab * width + tokens * (layers * 16 * width + vocab);
}

Miniature expect_miniature(const Plan& plan, const std::string& of) {
  const Registries registries = builtin_registries();
  Miniature small = miniature(plan, registries);
  EXPECT_TRUE(small.plan.has_value()) << of << ": " << small.reason;
  if (!small.plan) return small;
  EXPECT_NO_THROW(check_placement(*small.plan, registries)) << of;
  EXPECT_EQ(resolve(*small.plan, num_ranks(plan), registries.tensor_modes()), *small.plan) << of;
  EXPECT_TRUE(features_of(plan, registries) == features_of(*small.plan, registries)) << of;
  return small;
}

void expect_certified(const Overrides& overrides) {
  const Plan plan = plan_with(overrides);
  const Miniature small = expect_miniature(plan, "plan");
  const Certificate c = tests::certificate_of(plan, 1);
  EXPECT_EQ(c.verdict, "equal") << c.describe();
  EXPECT_EQ(c.level, "scaled");
}

TEST(Miniature, OfTwoDimensionsOnNineRanksKeepsDivisibleSamples) {
  expect_certified({{"parallel.tensor.mode", "2d"},
                    {"parallel.tensor.size", "9"},
                    {"model.hidden", "192"},
                    {"model.heads", "6"},
                    {"train.batch", "18"}});
}

TEST(Miniature, OfThreeSequenceParallelRanksKeepsDivisibleSequences) {
  expect_certified({{"parallel.tensor.mode", "1d-sp"},
                    {"parallel.tensor.size", "3"},
                    {"model.hidden", "192"},
                    {"model.heads", "6"},
                    {"model.sequence", "192"}});
}

TEST(Miniature, OfARareMixtureHasOne) {
  const Plan plan = plan_with({{"model.kind", "moe_gpt"},
                               {"model.moe_every", "4"},
                               {"model.layers", "12"},
                               {"model.hidden", "256"}});
  const Miniature small = expect_miniature(plan, "plan");
  ASSERT_TRUE(small.plan.has_value());
  EXPECT_GE(small.plan->model.layers, small.plan->model.moe_every);
  EXPECT_LT(small.plan->model.layers, 12);
}

TEST(Miniature, OfManyBucketsHasSeveral) {
  const Plan plan = plan_with(
      {{"parallel.data", "2"}, {"model.hidden", "512"}, {"parallel.data.bucket", "1048576"}});
  const Miniature small = expect_miniature(plan, "plan");
  ASSERT_TRUE(small.plan.has_value());
  EXPECT_TRUE(features_of(plan, builtin_registries()).has_several_buckets);
  EXPECT_LT(small.plan->parallel.data.bucket, 1048576);
}

TEST(Miniature, OfWhatCannotBePlacedSaysWhy) {
  Plan plan = plan_with({});
  plan.parallel.tensor = {"1d", 3, 1};
  const Miniature none = miniature(plan, builtin_registries());
  EXPECT_FALSE(none.plan.has_value());
  EXPECT_NE(none.reason.find("cannot be scaled"), std::string::npos) << none.reason;
}

void expect_miniatures(int64_t count, uint64_t seed) {
  tests::LargePlans plans(seed);
  for (int64_t i = 0; i < count; ++i) {
    const Plan plan = plans.next();
    const Miniature small = expect_miniature(plan, text("plan ", i, " of seed ", seed));
    if (!small.plan) {
      ADD_FAILURE() << to_toml(plan);
      continue;
    }
    // 4 M elements are 32 MiB of doubles; what is larger was made of many ranks.
    const double most = 4e6 * static_cast<double>(num_ranks(plan));
    EXPECT_LT(size_of(*small.plan), most) << to_toml(plan) << to_toml(*small.plan);
  }
}

TEST(Miniature, OfFortyLargePlansHaveTheirFeatures) { expect_miniatures(40, 1); }

class LargePlanMiniatures : public testing::TestWithParam<uint64_t> {};
TEST_P(LargePlanMiniatures, HaveTheFeaturesOfTheirPlans) { expect_miniatures(125, GetParam()); }
INSTANTIATE_TEST_SUITE_P(Thousand, LargePlanMiniatures, testing::Range<uint64_t>(2, 10));

}  // namespace
}  // namespace kuafu
