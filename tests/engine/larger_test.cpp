// SPDX-License-Identifier: Apache-2.0
//
// Label full: what engine_tests hold on small meshes, on larger ones and on more plans.

#include <gtest/gtest.h>

#include "kuafu/simulate/simulate.h"
#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::Family;
using tests::plan_of;

/// Grids beyond two by two, groups of odd size, three axes at once.
const std::vector<Family>& larger_families() {
  const Overrides thirds = {{"model.hidden", "36"}, {"model.heads", "6"}, {"train.batch", "18"}};
  const auto with = [](Overrides a, const Overrides& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  static const std::vector<Family> all = {
      {"data_8", {{"parallel.data", "8"}}},
      {"t1d_8",
       {{"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "8"}, {"model.heads", "8"}}},
      {"data_3_t1d_sp_3", with(thirds, {{"parallel.data", "3"},
                                        {"parallel.tensor.mode", "1d-sp"},
                                        {"parallel.tensor.size", "3"}})},
      {"t2d_9", with(thirds, {{"parallel.tensor.mode", "2d"}, {"parallel.tensor.size", "9"}})},
      {"t2d_16", {{"parallel.tensor.mode", "2d"}, {"parallel.tensor.size", "16"}}},
      {"data_4_t2d_4",
       {{"parallel.data", "4"}, {"parallel.tensor.mode", "2d"}, {"parallel.tensor.size", "4"}}},
      {"t2p5d_18", with(thirds, {{"parallel.tensor.mode", "2.5d"},
                                 {"parallel.tensor.size", "18"},
                                 {"parallel.tensor.depth", "2"}})},
      {"t3d_27", with(thirds, {{"parallel.tensor.mode", "3d"}, {"parallel.tensor.size", "27"}})},
      {"data_2_t3d_8",
       {{"parallel.data", "2"}, {"parallel.tensor.mode", "3d"}, {"parallel.tensor.size", "8"}}},
      {"data_2_t2p5d_8",
       {{"parallel.data", "2"},
        {"parallel.tensor.mode", "2.5d"},
        {"parallel.tensor.size", "8"},
        {"parallel.tensor.depth", "2"}}},
  };
  return all;
}

class LargerMesh : public testing::TestWithParam<Family> {};

void expect_equal(const Plan& plan) {
  const Certificate c = certificate_of(plan);
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  EXPECT_EQ(c.level, "full");
}

TEST_P(LargerMesh, EqualsOneRank) {
  expect_equal(plan_of(GetParam()));
  expect_equal(plan_of(GetParam(), {{"optimizer.kind", "sgd"}, {"optimizer.lr", "0.1"}}));
  expect_equal(plan_of(GetParam(), {{"model.vocab", "257"}, {"model.layers", "3"}}));
}

TEST_P(LargerMesh, EqualsOneRankUnderDropoutAndRecomputation) {
  for (const char* policy : {"none", "selective", "full"}) {
    expect_equal(plan_of(GetParam(), {{"memory.recompute", policy}, {"model.dropout", "0.1"}}));
  }
}

TEST_P(LargerMesh, GivesTheSameBitsTwice) {
  const Plan plan = plan_of(GetParam(), {{"model.dtype", "f32"}, {"model.dropout", "0.1"}});
  EXPECT_TRUE(tests::is_same(tests::train(plan), tests::train(plan)));
}

TEST_P(LargerMesh, IsPredictedExactly) {
  for (const char* policy : {"none", "full"}) {
    const Plan plan = plan_of(GetParam(), {{"model.dtype", "f32"}, {"memory.recompute", policy}});
    const Prediction predicted = simulate(plan, builtin_registries());
    const auto real = tests::run_plan(plan);
    ASSERT_EQ(predicted.ranks.size(), real.size());
    for (size_t r = 0; r < real.size(); ++r) {
      EXPECT_EQ(predicted.ranks[r].peak_bytes, real[r].peak_bytes) << "rank " << r;
      EXPECT_EQ(predicted.ranks[r].flops, real[r].flops) << "rank " << r;
      EXPECT_EQ(predicted.ranks[r].flops_recomputed, real[r].flops_recomputed) << "rank " << r;
      for (const auto& [axis, t] : real[r].traffic) {
        const AxisTraffic& s = predicted.ranks[r].traffic.at(axis);
        EXPECT_EQ(s.bytes_sent, t.bytes_sent) << axis << ", rank " << r;
        EXPECT_EQ(s.bytes_received, t.bytes_received) << axis << ", rank " << r;
        EXPECT_EQ(s.messages, t.messages) << axis << ", rank " << r;
        EXPECT_EQ(s.calls, t.calls) << axis << ", rank " << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Full, LargerMesh, testing::ValuesIn(larger_families()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
