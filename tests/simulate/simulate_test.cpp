// SPDX-License-Identifier: Apache-2.0
//
// The same rank program on meta tensors: what it sends, computes and holds equals the threaded run.

#include "kuafu/simulate/simulate.h"

#include <gtest/gtest.h>

#include <string_view>

#include "kuafu/simulate/last_step.h"

#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::expect_simulated_equals_threads;
using tests::Family;
using tests::plan_of;
using tests::small_plan;

class Simulated : public testing::TestWithParam<Family> {};

TEST_P(Simulated, EqualsThreads) { expect_simulated_equals_threads(plan_of(GetParam()), "plain"); }

TEST_P(Simulated, EqualsThreadsInF32WithDropoutAndAccumulation) {
  const Overrides more = {{"model.dtype", "f32"},
                          {"model.dropout", "0.1"},
                          {"train.batch", "24"},
                          {"train.micro_batch", "4"},
                          {"train.steps", "4"}};
  expect_simulated_equals_threads(plan_of(GetParam(), more), "f32");
}

TEST_P(Simulated, EqualsThreadsUnderRecomputation) {
  for (const char* policy : {"selective", "full"}) {
    expect_simulated_equals_threads(plan_of(GetParam(), {{"memory.recompute", policy}}), policy);
  }
}

TEST_P(Simulated, EqualsThreadsWithSgdAndOneStep) {
  expect_simulated_equals_threads(plan_of(GetParam(), {{"optimizer.kind", "sgd"},
                                                       {"train.steps", "1"},
                                                       {"parallel.data.overlap", "false"}}),
                                  "sgd");
}

TEST_P(Simulated, EqualsThreadsWithNormsOfLayers) {
  expect_simulated_equals_threads(plan_of(GetParam(), {{"optimizer.kind", "lamb"}}), "lamb");
}

TEST_P(Simulated, EqualsThreadsInBf16) {
  expect_simulated_equals_threads(plan_of(GetParam(), {{"model.dtype", "bf16"}}), "bf16");
}

INSTANTIATE_TEST_SUITE_P(All, Simulated, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

TEST(Prediction, HasNoLoss) {
  const Prediction p = simulate(small_plan(), builtin_registries());
  EXPECT_TRUE(p.ranks[0].losses.empty());
}

TEST(Prediction, OverBudgetThrowsAsTheRunDoes) {
  Plan plan = plan_of(tests::family("t1d_2"));
  plan.memory.device = tests::run_plan(plan)[0].peak_bytes - 1;
  EXPECT_THROW(simulate(plan, builtin_registries()), OutOfMemory);
}

TEST(Prediction, FasterLinksNeverSlowAStep) {
  for (const char* name : {"data_2", "t1d_4", "t2d_4"}) {
    Plan plan = plan_of(tests::family(name));
    const double slow = simulate(plan, builtin_registries()).step_seconds;
    plan.cluster.intra_bandwidth_gbs *= 2;
    plan.cluster.inter_bandwidth_gbs *= 2;
    EXPECT_LE(simulate(plan, builtin_registries()).step_seconds, slow) << name;
  }
}

// Steps are all alike without tiers: the mean of those that are recorded is the one that is drawn, but that
// a stage begins a step while another ends the one before. Slow memory, so that updates count: 20 bytes of a parameter with SGD, 28 with AdamW, 40 with LAMB.
TEST(Prediction, StepIsAsLongAsItsTimelineWithItsUpdate) {
  for (const char* name :
       {"one_rank", "data_3", "zero_1", "zero_3", "t1d_2", "t2d_4", "pipeline_2", "mixed"}) {
    const std::string_view what = name;
    const bool overlaps = what == "zero_3" || what == "pipeline_2" || what == "mixed";
    double faster = 0;
    for (const char* kind : {"sgd", "adamw", "lamb"}) {
      const Plan plan = plan_of(tests::sharding(name), {{"optimizer.kind", kind},
                                                        {"model.dtype", "f32"},
                                                        {"train.steps", "3"},
                                                        {"train.batch", "12"},
                                                        {"cluster.memory_gbs", "0.1"}});
      const double step = simulate(plan, builtin_registries()).step_seconds;
      const double drawn = simulate_last_step(plan, builtin_registries(), name).length_s;
      EXPECT_NEAR(step / drawn, 1, overlaps ? 0.005 : 1e-9) << name << " " << kind;
      EXPECT_GT(step, faster) << name << " " << kind;
      faster = step;
    }
  }
}

TEST(Prediction, TwiceTheComputeRateHalvesTheComputePart) {
  Plan plan = small_plan({{"cluster.memory_gbs", "1e9"}});
  const double slow = simulate(plan, builtin_registries()).step_seconds;
  plan.cluster.compute_gflops *= 2;
  EXPECT_NEAR(simulate(plan, builtin_registries()).step_seconds / slow, 0.5, 0.01);
}

}  // namespace
}  // namespace kuafu
