// SPDX-License-Identifier: Apache-2.0
//
// The recorder is the same on MPI ranks as on threads and simulated: of the plans that
// trace_test.cpp compares on threads, those of 2 to 4 ranks.

#include <gtest/gtest.h>

#include <iostream>

#include "tests/support/mpi_world.h"
#include "tests/support/traced_plans.h"
#include "tests/support/traces.h"

namespace kuafu {
namespace {

/// Compares the plans of 2 ranks or more that this world has; how many those are.
int64_t expect_traced_alike(const std::vector<tests::TracedPlan>& plans) {
  int64_t num_compared = 0;
  for (const tests::TracedPlan& traced : plans) {
    const auto ranks = static_cast<int>(num_ranks(traced.plan));
    if (ranks < 2 || ranks > tests::mpi_world().size()) continue;
    const auto group = tests::first_ranks(ranks);
    if (group != nullptr) tests::expect_traced_as_simulated(traced.plan, *group, traced.name);
    ++num_compared;
  }
  if (tests::mpi_world().rank() == 0) std::cout << num_compared << " plans\n";
  return num_compared;
}

TEST(MpiTraces, OfFamiliesAreThoseSimulated) {
  int64_t num_compared = 0;
  for (const tests::Family& f : tests::families()) {
    num_compared += expect_traced_alike(tests::traced_family(f));
  }
  EXPECT_GE(num_compared, 70);
}

TEST(MpiTraces, OfPipelinesAreThoseSimulated) {
  const auto plans = tests::traced_pipelines();
  EXPECT_EQ(expect_traced_alike(plans), static_cast<int64_t>(plans.size()));
}

TEST(MpiTraces, OfFeaturesAreThoseSimulated) {
  const auto plans = tests::traced_features();
  EXPECT_EQ(expect_traced_alike(plans), static_cast<int64_t>(plans.size()));
}

TEST(MpiTraces, OfTheProductAreThoseSimulated) {
  EXPECT_EQ(expect_traced_alike(tests::traced_product(40, 7, 4)), 40);
}

}  // namespace
}  // namespace kuafu
