// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/writers.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

TEST(Writers, TakeTheLargestPieceFirst) {
  const auto writes = assign_writers({{{"a", 6}, {"b", 3}}, {{"a", 6}, {"b", 3}, {"c", 2}}});
  EXPECT_EQ(writes, (std::vector<std::vector<bool>>{{true, false}, {false, true, true}}));
}

TEST(Writers, AreOneOfTheHoldersOfEachPieceAndEvenlyLoaded) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 100; ++trial) {
    const size_t ranks = 1 + random() % 9;
    std::vector<std::vector<HeldPiece>> claims(ranks);
    int64_t total = 0, largest = 0;
    for (int i = 0; i < 40; ++i) {  // held by all: replicas
      const auto bytes = static_cast<int64_t>(random() % 1000);
      total += bytes;
      largest = std::max(largest, bytes);
      for (auto& mine : claims) mine.push_back({"t" + std::to_string(i), bytes});
    }
    const auto writes = assign_writers(claims);
    std::map<std::string, int> writers;
    for (size_t r = 0; r < ranks; ++r) {
      int64_t load = 0;
      for (size_t i = 0; i < claims[r].size(); ++i) {
        if (!writes[r][i]) continue;
        ++writers[claims[r][i].key];
        load += claims[r][i].bytes;
      }
      // Greedy: above the mean by less than one piece.
      EXPECT_LE(load, total / static_cast<int64_t>(ranks) + largest);
    }
    EXPECT_EQ(writers.size(), 40u);
    for (const auto& [key, n] : writers) EXPECT_EQ(n, 1) << key;
  }
}

TEST(Writers, RefuseAPieceOfTwoSizes) {
  EXPECT_THROW(assign_writers({{{"a", 6}}, {{"a", 5}}}), InternalError);
}

}  // namespace
}  // namespace kuafu
