// SPDX-License-Identifier: Apache-2.0
//
// A check of the check: certificates of plans with one small wrong in them.

#include <gtest/gtest.h>

#include <iostream>

#include "tests/engine/mutants.h"

namespace kuafu {
namespace {

using tests::Mutant;

TEST(Mutants, DecoratorsAloneChangeNothing) {
  for (const char* family :
       {"data_2", "t1d_2", "t1d_sp_2", "t2d_4", "t2p5d_8", "t3d_8", "data_2_t1d_2"}) {
    const Mutant m = tests::harmless_mutant(family);
    EXPECT_EQ(tests::fate_of(m), "equal") << m.name;
    EXPECT_EQ(*m.fired, 0);
  }
}

/// Every mutant's fault must come true (else the mutant tests nothing), and at least 95 % must be
/// noticed. Who survives is printed.
void expect_noticed(const std::vector<Mutant>& mutants) {
  size_t survivors = 0;
  for (const Mutant& m : mutants) {
    const std::string fate = tests::fate_of(m);
    EXPECT_GT(*m.fired, 0) << m.name << ": the fault never came true";
    if (fate != "equal") continue;
    ++survivors;
    std::cout << "survived  " << m.name << std::endl;
  }
  std::cout << mutants.size() - survivors << " of " << mutants.size() << " mutants noticed\n";
  EXPECT_LE(20 * survivors, mutants.size()) << "more than 5 % survive";
}

TEST(Mutants, AreNoticed) {
  const std::vector<Mutant> mutants = tests::all_mutants();
  ASSERT_GE(mutants.size(), 40u);
  expect_noticed(mutants);
}

TEST(Mutants, OfPipelinesAreNoticed) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"}) {
    const Mutant m = tests::harmless_pipeline(schedule);
    EXPECT_EQ(tests::fate_of(m), "equal") << m.name;
    EXPECT_EQ(*m.fired, 0);
  }
  const std::vector<Mutant> mutants = tests::pipeline_mutants();
  ASSERT_GE(mutants.size(), 60u);
  expect_noticed(mutants);
}

}  // namespace
}  // namespace kuafu
