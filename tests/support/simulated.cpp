// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simulated.h"

#include <gtest/gtest.h>

#include "kuafu/simulate/simulate.h"

namespace kuafu::tests {

void expect_same_traffic(const TrafficByAxis& simulated, const TrafficByAxis& real,
                         const std::string& where) {
  ASSERT_EQ(simulated.size(), real.size()) << where;
  for (const auto& [axis, t] : real) {
    ASSERT_TRUE(simulated.contains(axis)) << where << axis;
    const AxisTraffic& s = simulated.at(axis);
    EXPECT_EQ(s.bytes_sent, t.bytes_sent) << where << axis;
    EXPECT_EQ(s.bytes_received, t.bytes_received) << where << axis;
    EXPECT_EQ(s.messages, t.messages) << where << axis;
    EXPECT_EQ(s.peers, t.peers) << where << axis;
    EXPECT_EQ(s.wire_peers, t.wire_peers) << where << axis;
    EXPECT_EQ(s.calls, t.calls) << where << axis;
    EXPECT_EQ(s.counting, t.counting) << where << axis;
  }
}

void expect_simulated_equals_threads(const Plan& plan, const std::string& name) {
  const Prediction predicted = simulate(plan, builtin_registries());
  const auto real = run_plan(plan);
  ASSERT_EQ(predicted.ranks.size(), real.size());
  for (size_t r = 0; r < real.size(); ++r) {
    const std::string where = text(name, ", rank ", r, ": ");
    expect_same_traffic(predicted.ranks[r].traffic, real[r].traffic, where);
    EXPECT_EQ(predicted.ranks[r].flops, real[r].flops) << where;
    EXPECT_EQ(predicted.ranks[r].flops_recomputed, real[r].flops_recomputed) << where;
    EXPECT_EQ(predicted.ranks[r].flops_optimizer, real[r].flops_optimizer) << where;
    EXPECT_EQ(predicted.ranks[r].peak_bytes, real[r].peak_bytes) << where;
    for (int c = 0; c < kNumCategories; ++c) {
      const auto i = static_cast<size_t>(c);
      const auto category = static_cast<Category>(c);
      if (category == Category::kScratch) continue;  // what a kernel takes inside itself
      EXPECT_EQ(predicted.ranks[r].at_peak[i], real[r].at_peak[i]) << where << to_string(category);
      EXPECT_EQ(predicted.ranks[r].peak_by_category[i], real[r].peak_by_category[i])
          << where << to_string(category);
    }
    EXPECT_GT(real[r].peak_bytes, 0) << where;
  }
  EXPECT_GT(predicted.step_seconds, 0) << name;
}

}  // namespace kuafu::tests
