// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/pipeline/on_cores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/schedules.h"
#include "tests/support/random_schedule.h"

namespace kuafu::pipeline {
namespace {

std::vector<RowSeconds> seconds_of(const Timetable& t, const OpCosts& costs) {
  std::vector<RowSeconds> rows;
  for (const Row& row : t) {
    RowSeconds& seconds = rows.emplace_back();
    for (const Action& a : row) seconds.push_back(costs.of(a));
  }
  return rows;
}

double work_of(const std::vector<RowSeconds>& rows) {
  double sum = 0;
  for (const RowSeconds& row : rows) sum = std::accumulate(row.begin(), row.end(), sum);
  return sum;
}

TEST(OnCores, ACoreARankGivesThePlayedLength) {
  const OpCosts costs{.forward = 1, .input_grad = 1.5, .weight_grad = 0.75};
  std::mt19937 random(11);
  std::vector<Timetable> all = {gpipe({4, 8, 1}), one_f_one_b({5, 7, 1}), interleaved({3, 6, 2}),
                                zero_bubble_h1({4, 9, 1}), zbv({3, 5, 2})};
  for (int trial = 0; trial < 40; ++trial) {
    all.push_back(tests::random_schedule({1 + trial % 4, 1 + trial % 5, 1 + trial % 3}, random));
  }
  for (const Timetable& t : all) {
    // Sums of at most some hundred small numbers in another order.
    EXPECT_NEAR(length_on_cores(t, seconds_of(t, costs), static_cast<int>(t.size())),
                estimate(t, costs).length, 1e-11)
        << to_csv(t);
  }
}

TEST(OnCores, OneCoreDoesAllTheWorkInTurn) {
  for (const Timetable& t : {one_f_one_b({4, 8, 1}), interleaved({3, 6, 2}), zbv({2, 5, 2})}) {
    const std::vector<RowSeconds> rows = seconds_of(t, {.forward = 1, .input_grad = 2});
    EXPECT_NEAR(length_on_cores(t, rows, 1), work_of(rows), 1e-11);
  }
}

TEST(OnCores, FewerCoresTakeNoLessThanWorkAndChain) {
  const Timetable t = one_f_one_b({4, 8, 1});
  const OpCosts costs{};
  const std::vector<RowSeconds> rows = seconds_of(t, costs);
  double before = length_on_cores(t, rows, 1);
  for (const int cores : {2, 3, 4}) {
    const double length = length_on_cores(t, rows, cores);
    EXPECT_GE(length, work_of(rows) / cores);
    EXPECT_GE(length + 1e-12, estimate(t, costs).length);
    EXPECT_LT(length, before);
    before = length;
  }
}

// rank 0: F 1, B 2; rank 1: F 1, B 2, after each other in a chain, then an update of 4 and of 1.
TEST(OnCores, WorkBehindTheRowCounts) {
  const Timetable t = one_f_one_b({2, 1, 1});
  EXPECT_DOUBLE_EQ(length_on_cores(t, {{1, 2, 4}, {1, 2, 1}}, 2), 10);
  EXPECT_DOUBLE_EQ(length_on_cores(t, {{1, 2, 4}, {1, 2, 9}}, 2), 13);
  EXPECT_DOUBLE_EQ(length_on_cores(t, {{1, 2, 4}, {1, 2, 1}}, 1), 11);
}

TEST(OnCores, RefusesRowsThatDoNotFit) {
  const Timetable t = one_f_one_b({2, 1, 1});
  EXPECT_THROW(length_on_cores(t, {{1, 2}}, 2), ConfigError);
  EXPECT_THROW(length_on_cores(t, {{1}, {1, 2}}, 2), ConfigError);
  EXPECT_THROW(length_on_cores(t, {{1, 2}, {1, 2}}, 0), ConfigError);
}

}  // namespace
}  // namespace kuafu::pipeline
