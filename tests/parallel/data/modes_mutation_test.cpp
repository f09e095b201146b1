// SPDX-License-Identifier: Apache-2.0
//
// Small wrongs in the messages with which replicas agree by a named algorithm: the certificate must
// notice each.

#include <gtest/gtest.h>

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

TEST(ModeMutants, AreNoticed) {
  for (const Sweep& sweep : tests::mode_sweeps()) {
    SCOPED_TRACE(sweep.name + ", " + sweep.axis);
    const std::vector<Mutant> mutants = tests::spoilt_calls(sweep);
    ASSERT_GE(mutants.size(), 9u);
    tests::expect_noticed(mutants);
  }
}

}  // namespace
}  // namespace kuafu
