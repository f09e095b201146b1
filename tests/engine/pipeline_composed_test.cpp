// SPDX-License-Identifier: Apache-2.0
//
// Pipelines whose stages are parallel within themselves compute what one rank computes, and the
// simulated world meters what thread ranks do.

#include <gtest/gtest.h>

#include "tests/engine/composed.h"
#include "tests/support/simulated.h"

namespace kuafu {
namespace {

using tests::Composed;
using tests::Pipe;

class ComposedPipelines : public testing::TestWithParam<Composed> {
 protected:
  /// A number of this kind of plan, so that kinds take turns.
  static size_t turn() {
    const auto& all = tests::composed();
    size_t i = 0;
    while (all[i].name != GetParam().name) ++i;
    return i;
  }
};

const char* const kPolicies[] = {"none", "selective", "full"};

// The whole product is in larger_tests.
TEST_P(ComposedPipelines, EqualOneRankUnderDropoutAndRecomputation) {
  const auto& pipes = tests::two_rank_pipes();
  for (const size_t i : {turn(), turn() + 2}) {
    const Pipe& pipe = pipes[i % pipes.size()];
    Overrides more = {{"model.dropout", "0.1"}, {"memory.recompute", kPolicies[i % 3]}};
    if (GetParam().replicas > 1) more.emplace_back("parallel.zero", text(i % 4));
    tests::expect_equal(tests::composed_plan(GetParam(), pipe, 3, more),
                        text(pipe, ", ", kPolicies[i % 3]));
  }
}

TEST_P(ComposedPipelines, AreMeteredAlikeInTheSimulatedWorld) {
  const auto& pipes = tests::two_rank_pipes();
  const size_t i = turn() + 1;
  Overrides more = {{"model.dtype", "f32"}, {"memory.recompute", kPolicies[i % 3]}};
  if (GetParam().replicas > 1) more.emplace_back("parallel.zero", text(i % 4));
  const Pipe& pipe = pipes[i % pipes.size()];
  tests::expect_simulated_equals_threads(tests::composed_plan(GetParam(), pipe, 3, more),
                                         text(pipe));
}

INSTANTIATE_TEST_SUITE_P(All, ComposedPipelines, testing::ValuesIn(tests::composed()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kuafu
