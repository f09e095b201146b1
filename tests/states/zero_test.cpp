// SPDX-License-Identifier: Apache-2.0
//
// ZeRO computes what one rank computes, beside every kind of parallelism, and the simulated world
// meters what thread ranks do.

#include <gtest/gtest.h>

#include "tests/states/zero_plans.h"
#include "tests/support/ranks.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::kStages;
using tests::zero_plan;

void expect_equal(const Plan& plan, const std::string& what) {
  const Certificate c = tests::certificate_of(plan);
  EXPECT_EQ(c.verdict, "equal") << what << ", ZeRO-" << plan.parallel.zero << ": " << c.describe()
                                << "; native " << c.native.describe();
}

class Zero : public testing::TestWithParam<Family> {
 protected:
  /// Batches of `accumulated` micro-batches of four samples: grids of 2.5D and 3D need four.
  static Overrides accumulation(int64_t accumulated) {
    const int64_t replicas = tests::plan_of(GetParam()).parallel.data.size;
    return {{"train.batch", text(4 * accumulated * replicas)}, {"train.micro_batch", "4"}};
  }
};

TEST_P(Zero, EqualsOneRank) {
  for (int64_t stage = 1; stage <= kStages; ++stage) {
    expect_equal(zero_plan(GetParam(), stage), "AdamW, clipped");
    expect_equal(zero_plan(GetParam(), stage,
                           {{"optimizer.kind", "sgd"},
                            {"optimizer.lr", "0.1"},
                            {"parallel.data.bucket", "1"},
                            {"parallel.data.overlap", "false"}}),
                 "SGD, a bucket a tensor, no overlap");
  }
}

TEST_P(Zero, EqualsOneRankUnderAccumulationAndRecomputation) {
  for (int64_t stage = 1; stage <= kStages; ++stage) {
    for (const int64_t accumulated : {2, 5}) {
      Overrides more = accumulation(accumulated);
      more.emplace_back("memory.recompute", accumulated == 2 ? "full" : "selective");
      more.emplace_back("parallel.data.bucket", "3000");
      more.emplace_back("parallel.data.order", accumulated == 2 ? "any" : "fixed");
      expect_equal(zero_plan(GetParam(), stage, more), text(accumulated, " micro-batches"));
    }
  }
}

TEST_P(Zero, MetersTheSameInTheSimulatedWorld) {
  for (int64_t stage = 1; stage <= kStages; ++stage) {
    const std::string name = text("ZeRO-", stage);
    tests::expect_simulated_equals_threads(zero_plan(GetParam(), stage), name);
    Overrides more = accumulation(2);
    more.emplace_back("model.dtype", "bf16");
    more.emplace_back("parallel.data.bucket", "3000");
    tests::expect_simulated_equals_threads(zero_plan(GetParam(), stage, more), name + ", bf16");
    more.emplace_back("model.dtype", "f32");
    more.emplace_back("parallel.data.order", "fixed");
    more.emplace_back("parallel.data.overlap", "false");
    tests::expect_simulated_equals_threads(zero_plan(GetParam(), stage, more), name + ", fixed");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Zero, testing::ValuesIn(tests::zero_families()),
                         [](const auto& info) { return info.param.name; });

TEST(ZeroOfAHalfPrecisionModel, CarriesNativeErrorsLikeOneRank) {
  for (int64_t stage = 1; stage <= kStages; ++stage) {
    const Certificate c =
        tests::certificate_of(zero_plan(tests::family("data_3"), stage, {{"model.dtype", "bf16"}}));
    EXPECT_EQ(c.verdict, "equal") << c.native.describe();
    EXPECT_GT(c.native.gradient.error, 1e-4);  // bf16 does round
  }
}

TEST(ZeroOptions, ServersKeepWhatReplicasWouldShard) {
  try {
    tests::small_plan({{"parallel.data.size", "2"},
                       {"parallel.data.mode", "parameter_server"},
                       {"parallel.zero", "1"}});
    FAIL() << "ZeRO-1 beside a parameter server was accepted";
  } catch (const ConfigError& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("parallel.zero = 1"), std::string::npos) << what;
    EXPECT_NE(what.find("zero = 0"), std::string::npos) << what;
    EXPECT_NE(what.find("mode = \"auto\""), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace kuafu
