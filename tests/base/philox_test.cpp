// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kuafu {
namespace {

using Block = std::array<uint32_t, 4>;

// Known answers published with the generator (Random123, kat_vectors, philox4x32 10).
TEST(Philox, MatchesKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRandom, IsAFunctionOfSeedSiteAndIndex) {
  const CounterRandom random(7, 11);
  EXPECT_EQ(random.bits(5), CounterRandom(7, 11).bits(5));
  EXPECT_NE(random.bits(5), CounterRandom(8, 11).bits(5));
  EXPECT_NE(random.bits(5), CounterRandom(7, 12).bits(5));
  EXPECT_NE(random.bits(5), random.bits(6));
}

// The mean of n uniforms has standard deviation 1/sqrt(12 n), that of n normals 1/sqrt(n), that of
// n squared normals sqrt(2/n): five of them bound a fixed seed generously.
TEST(CounterRandom, HasTheMomentsOfItsDistributions) {
  const CounterRandom random(1, 2);
  const int n = 100000;
  double uniform = 0, normal = 0, squared = 0;
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform(static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    const double z = random.normal(static_cast<uint64_t>(i));
    uniform += u / n;
    normal += z / n;
    squared += z * z / n;
  }
  EXPECT_NEAR(uniform, 0.5, 5 / std::sqrt(12.0 * n));
  EXPECT_NEAR(normal, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(squared, 1.0, 5 * std::sqrt(2.0 / n));
}

// Published FNV-1a test vectors.
TEST(HashName, IsFnv1a) {
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash_name("foobar"), 0x85944171f73967e8u);
}

}  // namespace
}  // namespace kuafu
