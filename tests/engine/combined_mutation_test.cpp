// SPDX-License-Identifier: Apache-2.0
//
// Certificates of pipelines under ZeRO with one small wrong in them: a sample of every schedule
// under every stage.

#include <gtest/gtest.h>

#include "tests/engine/mutants.h"

namespace kuafu {
namespace {

using tests::Mutant;
using tests::Sweep;

// The third all-reduce of a step adds up squares that one stage alone has: dropped on the rank that
// has them, it changes nothing.
bool changes_nothing(const Mutant& m) {
  return m.name.ends_with("on one rank drops call 3 of all_reduce on pipeline") ||
         m.name.ends_with(": drops call 3 of all_reduce on pipeline");
}

TEST(ZeroPipelineMutants, ASampleIsNoticed) {
  std::vector<Mutant> sample;
  size_t turn = 0;
  for (const Sweep& sweep : tests::zero_pipeline_sweeps()) {
    const Mutant harmless = tests::harmless_sweep(sweep);
    EXPECT_EQ(tests::fate_of(harmless), "equal") << harmless.name;
    std::vector<Mutant> all = tests::zero_pipeline_mutants(sweep);
    std::erase_if(all, changes_nothing);
    sample.push_back(all[turn % all.size()]);
    turn += 5;
  }
  ASSERT_GE(sample.size(), 30u);
  tests::expect_noticed(sample);
}

}  // namespace
}  // namespace kuafu
