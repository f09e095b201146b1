// SPDX-License-Identifier: Apache-2.0
//
// A check of the check: certificates of plans with one small wrong in them.

#include <gtest/gtest.h>

#include "tests/engine/mutants.h"

namespace kuafu {
namespace {

class Mutants : public testing::TestWithParam<std::string> {};

TEST_P(Mutants, DecoratorsAloneChangeNothing) {
  const tests::Mutant m = tests::harmless_mutant(GetParam());
  EXPECT_EQ(tests::fate_of(m), "equal") << m.name;
  EXPECT_EQ(*m.fired, 0);
}

TEST_P(Mutants, AreNoticed) {
  const std::vector<tests::Mutant> mutants = tests::mutants_of(GetParam());
  ASSERT_GE(mutants.size(), 8u);
  tests::expect_noticed(mutants);
}

INSTANTIATE_TEST_SUITE_P(All, Mutants, testing::ValuesIn(tests::mutated_families()),
                         [](const auto& info) { return info.param; });

TEST(PipelineMutants, AreNoticed) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"}) {
    const tests::Mutant m = tests::harmless_pipeline(schedule);
    EXPECT_EQ(tests::fate_of(m), "equal") << m.name;
    EXPECT_EQ(*m.fired, 0);
  }
  const std::vector<tests::Mutant> mutants = tests::pipeline_mutants();
  ASSERT_GE(mutants.size(), 60u);
  tests::expect_noticed(mutants);
}

}  // namespace
}  // namespace kuafu
