// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>

#include "kuafu/base/philox.h"
#include "kuafu/oracle/random.h"
#include "tests/oracle/cases.h"

namespace kuafu {
namespace {

// n independent decisions: five standard deviations of their mean, sqrt(p (1 - p) / n).
TEST(OracleRandom, DropoutKeepsItsRate) {
  const std::vector<int64_t> shape = {8, 32, 64};
  const double n = 8 * 32 * 64;
  for (const double p : {0.1, 0.5}) {
    const Tensor stays = oracle::dropout_mask({1, "embedding", 3}, p, 0, shape);
    const double rate = stays.to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(rate, 1 - p, 5 * std::sqrt(p * (1 - p) / n));
  }
}

TEST(OracleRandom, MasksFollowTheSampleAndNotTheMicroBatch) {
  const Tensor whole = oracle::dropout_mask({1, "blocks.0.mlp", 3}, 0.3, 0, {4, 5, 7});
  const Tensor tail = oracle::dropout_mask({1, "blocks.0.mlp", 3}, 0.3, 3, {1, 5, 7});
  EXPECT_TRUE(whole.narrow(0, 3, 1).equal(tail));
}

TEST(OracleRandom, EverySeedSiteAndStepHasAMaskOfItsOwn) {
  const std::vector<int64_t> shape = {2, 8, 16};
  const Tensor one = oracle::dropout_mask({1, "a", 0}, 0.5, 0, shape);
  for (const oracle::Site& other : {oracle::Site{2, "a", 0}, {1, "b", 0}, {1, "a", 1}}) {
    EXPECT_FALSE(one.equal(oracle::dropout_mask(other, 0.5, 0, shape)));
  }
}

TEST(OracleRandom, CoinsAreTheGeneratorsUniformNumbers) {
  const Tensor u = oracle::coins({7, "blocks.1.moe", 2}, 3, 2, 5);
  const CounterRandom random(7, hash_name("blocks.1.moe") + 3 * 0x9e3779b97f4a7c15);
  EXPECT_EQ(u[1][4].item<double>(), random.uniform(4 * 5 + 4));
  EXPECT_GE(u.min().item<double>(), 0);
  EXPECT_LT(u.max().item<double>(), 1);
}

// The mean of n normals of std s is within 5 s / sqrt(n) of zero, their standard deviation within
// 5 s / sqrt(2 n) of s.
TEST(OracleRandom, FirstWeightsHaveTheirStandardDeviation) {
  const Plan plan = tests::small_plan();
  const auto model = oracle::make_model(plan.model, 1);
  const oracle::Tensors weights = oracle::initial_weights(*model, 1);
  for (const auto& [name, weight] : model->weights()) {
    const Tensor& w = weights.at(name);
    ASSERT_EQ(w.sizes().vec(), weight.shape) << name;
    const double n = static_cast<double>(w.numel());
    if (weight.init == oracle::Weight::Init::kNormal) {
      EXPECT_NEAR(w.mean().item<double>(), 0, 5 * weight.std / std::sqrt(n)) << name;
      EXPECT_NEAR(w.std().item<double>(), weight.std, 5 * weight.std / std::sqrt(2 * n)) << name;
    } else {
      const double value = weight.init == oracle::Weight::Init::kOnes ? 1 : 0;
      EXPECT_TRUE(w.eq(value).all().item<bool>()) << name;
    }
  }
}

}  // namespace
}  // namespace kuafu
