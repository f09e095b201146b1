// SPDX-License-Identifier: Apache-2.0
//
// What copies between tiers cost a simulated step, beside closed forms and beside throttled copies.

#include <gtest/gtest.h>

#include <algorithm>

#include "kuafu/checkpoint/boxes.h"
#include "kuafu/simulate/simulate.h"
#include "tests/states/tier_runs.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using namespace tests::tiers;

constexpr double kRate = 1e7;  // bytes a second of cluster.host_gbs and disk_gbs below

/// A plan on one rank whose computing takes no time, so that copies are all there is.
Overrides only_copies(const Overrides& more) {
  return both({{"memory.policy", "host"},
               {"memory.prefetch", "0"},
               {"train.steps", "3"},
               {"cluster.compute_gflops", "1e12"},
               {"cluster.memory_gbs", "1e12"},
               {"cluster.host_memory_gbs", "1e12"},
               {"cluster.host_gbs", "0.01"}},
              more);
}

Prediction predicted(const Overrides& plan) {
  return simulate(plan_with(plan), builtin_registries());
}

TEST(TierTimes, AreTheBytesOverTheRateOfTheLink) {
  const Prediction slow = predicted(only_copies({}));
  const MoveCounts& moves = slow.ranks[0].moves;
  const double loads = static_cast<double>(moves.step_to_device) / kRate;
  const double all = loads + static_cast<double>(moves.step_to_host) / kRate;
  EXPECT_GE(slow.step_seconds, loads * (1 - 1e-9));  // loads wait for each other, gradients leave
  EXPECT_LE(slow.step_seconds, all * (1 + 1e-6));    // beside them
  const Prediction fast = predicted(only_copies({{"cluster.host_gbs", "0.02"}}));
  EXPECT_NEAR(fast.step_seconds / slow.step_seconds, 0.5, 1e-6);
  EXPECT_NEAR(moves.wait_seconds, 3 * slow.step_seconds, 1e-6 * moves.wait_seconds);
}

TEST(TierTimes, ADiskReadsAndWritesWithOneRate) {
  const Prediction p = predicted(only_copies({{"memory.disk_path", testing::TempDir()},
                                              {"memory.chunk_size", "4096"},
                                              {"cluster.host_gbs", "1e6"},
                                              {"cluster.disk_gbs", "0.01"}}));
  const DiskCounts& disk = p.ranks[0].moves.disk;
  ASSERT_GT(disk.step_read, 0);
  const double least = static_cast<double>(disk.step_read + disk.step_written) / kRate;
  EXPECT_NEAR(p.step_seconds, least, 1e-3 * least);
}

TEST(TierTimes, AnUpdateOnTheHostTakesWhatItsMemoryTakes) {
  const auto step = [](const char* gbs) {
    return predicted(only_copies({{"cluster.host_memory_gbs", gbs}})).step_seconds;
  };
  const double copies = step("1e12"), at_ten = step("0.01") - copies,
               at_five = step("0.005") - copies;
  EXPECT_NEAR(at_five / at_ten, 2, 1e-6);
  // AdamW in f32: 28 bytes a parameter; besides the norm reads the gradients, 4.
  const double parameters = 4 + 28, bytes = at_ten * 1e7;
  const Plan plan = plan_with(only_copies({}));
  int64_t count = 0;
  tests::run_ranks(1, [&](Communicator& world) {
    const auto data = tests::data_of(plan);
    Engine engine(plan, builtin_registries(), world, *data, {});
    for (const Param* p : engine.params()) count += volume(p->global);
  });
  EXPECT_NEAR(bytes / (parameters * static_cast<double>(count)), 1, 0.02);
}

TEST(TierTimes, PrefetchHidesCopiesBehindComputing) {
  const auto with = [](const char* prefetch) {
    return predicted({{"memory.policy", "host"},
                      {"memory.prefetch", prefetch},
                      {"cluster.compute_gflops", "1"},
                      {"cluster.host_gbs", "0.5"}});
  };
  const Prediction none = with("0"), one = with("1");
  // Of a step's loads; what is not hidden is the first one, and gradients that the update waits for.
  const double loads = static_cast<double>(none.ranks[0].moves.step_to_device) / 0.5e9;
  EXPECT_EQ(one.ranks[0].moves.step_to_device, none.ranks[0].moves.step_to_device);
  EXPECT_LT(one.step_seconds, none.step_seconds - 0.5 * loads);
  const Prediction plain = predicted({{"cluster.compute_gflops", "1"}});
  EXPECT_LT(plain.step_seconds, one.step_seconds);
}

// The fastest of some steps: what a machine does beside them makes single ones longer.
TEST(TierTimes, AreThoseOfThrottledCopies) {
  const Overrides plan =
      only_copies({{"memory.throttle", "true"}, {"train.steps", "5"}, {"model.hidden", "64"}});
  const double copies = predicted(plan).step_seconds;
  const auto fastest = [](const Plan& p) {
    const std::vector<double> all = tests::run_plan(p)[0].step_seconds;
    return *std::min_element(all.begin() + 1, all.end());
  };
  const double computing = fastest(plan_with({{"train.steps", "5"}, {"model.hidden", "64"}}));
  const double real = fastest(plan_with(plan));
  EXPECT_GE(real, 0.95 * copies);
  EXPECT_LE(real, 1.1 * copies + 3 * computing);
}

}  // namespace
}  // namespace kuafu
