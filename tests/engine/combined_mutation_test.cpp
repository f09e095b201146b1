// SPDX-License-Identifier: Apache-2.0
//
// Certificates of pipelines under ZeRO with one small wrong in them: a quick sample of every
// schedule under every stage. The whole kits are in larger_tests.

#include <gtest/gtest.h>

#include "tests/engine/mutants.h"

namespace kuafu {
namespace {

using tests::Mutant;
using tests::Sweep;

TEST(ZeroPipelineMutants, ASampleIsNoticed) {
  std::vector<Mutant> sample;
  size_t turn = 0;
  for (const Sweep& sweep : tests::zero_pipeline_sweeps()) {
    const Mutant harmless = tests::harmless_sweep(sweep);
    EXPECT_EQ(tests::fate_of(harmless), "equal") << harmless.name;
    const std::vector<Mutant> all = tests::zero_pipeline_mutants(sweep);
    sample.push_back(all[turn % all.size()]);
    turn += 5;
  }
  ASSERT_GE(sample.size(), 30u);
  tests::expect_noticed(sample);
}

}  // namespace
}  // namespace kuafu
