// SPDX-License-Identifier: Apache-2.0
//
// Label full: every mutant of every schedule under every stage of ZeRO.

#include <gtest/gtest.h>

#include "tests/engine/mutants.h"

namespace kuafu {
namespace {

TEST(EveryZeroPipelineMutant, IsNoticed) {
  for (const tests::Sweep& sweep : tests::zero_pipeline_sweeps()) {
    SCOPED_TRACE(sweep.name + ", " + sweep.axis);
    const std::vector<tests::Mutant> mutants = tests::zero_pipeline_mutants(sweep);
    ASSERT_GE(mutants.size(), 10u);
    tests::expect_noticed(mutants);
  }
}

}  // namespace
}  // namespace kuafu
