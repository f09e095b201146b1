// SPDX-License-Identifier: Apache-2.0
//
// The recorder is the same on MPI ranks as on threads and simulated: of the plans that
// trace_test.cpp compares on threads, those of 2 to 4 ranks.

#include <gtest/gtest.h>

#include <iostream>

#include "kuafu/comm/worlds.h"
#include "kuafu/tensor/tensor.h"
#include "tests/support/traced_plans.h"
#include "tests/support/traces.h"

namespace kuafu {
namespace {

// The world of this process; main() runs the tests inside it.
Communicator* world = nullptr;

/// Compares the plans of 2 ranks or more that this world has; how many those are.
int64_t expect_traced_alike(const std::vector<tests::TracedPlan>& plans) {
  int64_t num_compared = 0;
  for (const tests::TracedPlan& traced : plans) {
    const auto ranks = static_cast<int>(num_ranks(traced.plan));
    if (ranks < 2 || ranks > world->size()) continue;
    const auto group = world->split([ranks](int r) { return SplitKey{r < ranks ? 0 : -1, r}; });
    if (group != nullptr) tests::expect_traced_as_simulated(traced.plan, *group, traced.name);
    ++num_compared;
  }
  if (world->rank() == 0) std::cout << num_compared << " plans\n";
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

int main(int argc, char** argv) {
  kuafu::initialise_tensors();
  int failures = 0;
  kuafu::run_on_mpi([&](kuafu::Communicator& communicator) {
    kuafu::world = &communicator;
    testing::InitGoogleTest(&argc, argv);
    failures = RUN_ALL_TESTS();
  });
  return failures;
}
