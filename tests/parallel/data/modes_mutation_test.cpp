// SPDX-License-Identifier: Apache-2.0
//
// Small wrongs in the messages with which replicas agree by a named algorithm: the certificate must
// notice each.

#include <gtest/gtest.h>

#include <iterator>
#include <vector>

#include "tests/engine/mutants.h"

namespace kuafu {
namespace {

using tests::Mutant;
using tests::Sweep;

TEST(ModeMutants, DecoratorsAloneChangeNothing) {
  for (const Sweep& sweep : tests::mode_sweeps()) {
    const Mutant m = tests::harmless_sweep(sweep);
    EXPECT_EQ(tests::fate_of(m), "equal") << m.name;
    EXPECT_EQ(*m.fired, 0);
  }
}

// The one server of three ranks holds all gradients: its sum of squares is the whole already, and
// to drop the all-reduce that adds the workers' zeros to it, its second of a step, is no wrong.
bool changes_nothing(const Mutant& m) {
  return m.name.starts_with("1 parameter server of 3: ") &&
         m.name.ends_with("drops call 2 of all_reduce on data");
}

TEST(ModeMutants, AreNoticed) {
  std::vector<Mutant> all;
  for (const Sweep& sweep : tests::mode_sweeps()) {
    std::vector<Mutant> mutants = tests::spoilt_calls(sweep);
    ASSERT_GE(mutants.size(), 9u) << sweep.name << ", " << sweep.axis;
    std::move(mutants.begin(), mutants.end(), std::back_inserter(all));
  }
  EXPECT_EQ(std::erase_if(all, changes_nothing), 2u);
  tests::expect_noticed(all);
}

}  // namespace
}  // namespace kuafu
