// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kuafu {
namespace {

std::vector<int64_t> order_of(int64_t size, uint64_t seed, uint64_t site = 0) {
  const Permutation permutation(size, seed, site);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) out.push_back(permutation(i));
  return out;
}

TEST(Permutation, IsABijectionForEverySize) {
  std::vector<int64_t> sizes = {1023, 1024, 1025, 5000};
  for (int64_t size = 1; size <= 130; ++size) sizes.push_back(size);
  for (const int64_t size : sizes) {
    for (const uint64_t seed : {1u, 2u, 3u}) {
      std::vector<bool> seen(static_cast<size_t>(size), false);
      for (const int64_t x : order_of(size, seed)) {
        ASSERT_TRUE(x >= 0 && x < size);
        ASSERT_FALSE(seen[static_cast<size_t>(x)]) << size << ": " << x << " twice";
        seen[static_cast<size_t>(x)] = true;
      }
    }
  }
}

TEST(Permutation, DependsOnSeedAndSite) {
  EXPECT_EQ(order_of(1000, 1), order_of(1000, 1));
  EXPECT_NE(order_of(1000, 1), order_of(1000, 2));
  EXPECT_NE(order_of(1000, 1, 0), order_of(1000, 1, 1));
}

// A random order of n has one fixed point and n/2 ascents on average; their standard deviations are
// 1 and sqrt(n/12). Ten of them bound a fixed seed generously.
TEST(Permutation, LooksRandom) {
  const int64_t n = 4000;
  const std::vector<int64_t> order = order_of(n, 5);
  int64_t fixed = 0, ascents = 0;
  for (int64_t i = 0; i < n; ++i) {
    fixed += order[static_cast<size_t>(i)] == i;
    ascents += i > 0 && order[static_cast<size_t>(i)] > order[static_cast<size_t>(i - 1)];
  }
  EXPECT_LE(fixed, 11);
  EXPECT_NEAR(static_cast<double>(ascents), n / 2.0, 10 * std::sqrt(n / 12.0));
}

TEST(Permutation, TakesSizesNearTheLargestInteger) {
  const int64_t size = (int64_t{1} << 62) + 12345;
  const Permutation permutation(size, 1, 2);
  for (const int64_t i : {int64_t{0}, size / 2, size - 1}) {
    EXPECT_GE(permutation(i), 0);
    EXPECT_LT(permutation(i), size);
  }
}

}  // namespace
}  // namespace kuafu
