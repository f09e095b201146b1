// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/chunks.h"

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/memory/samples.h"

namespace kuafu::memory {
namespace {

std::vector<ParamGroup> random_groups(Dice& dice) {
  std::vector<ParamGroup> groups(static_cast<size_t>(dice.from_to(1, 4)));
  for (ParamGroup& group : groups) {
    group.elements.resize(static_cast<size_t>(dice.from_to(1, 12)));
    for (int64_t& elements : group.elements) elements = dice.from_to(1, dice.happens(20) ? 90 : 30);
  }
  return groups;
}

TEST(ChunkSearch, FillsInOrderAndNeverAcrossGroups) {
  const ChunkLayout layout = layout_chunks({{"a", {5, 4, 2}}, {"b", {3, 8}}}, 10);
  EXPECT_EQ(layout.chunks,
            (std::vector<ChunkContent>{{0, 0, 2, 9}, {0, 2, 1, 2}, {1, 0, 1, 3}, {1, 1, 1, 8}}));
  EXPECT_EQ(layout.waste, 1 + 8 + 7 + 2);
}

TEST(ChunkSearch, TakesTheLeastWaste) {
  // 10: 1 + 8 + 7 + 2; 11: all of each group, nothing left.
  const ChunkLayout layout =
      find_chunks({{"a", {5, 4, 2}}, {"b", {3, 8}}}, {.smallest = 8, .step = 1});
  EXPECT_EQ(layout.size, 11);
  EXPECT_EQ(layout.waste, 0);
}

TEST(ChunkSearch, RoundsUpToTheReplicas) {
  EXPECT_EQ(chunk_sizes({{"a", {5}}}, {.replicas = 3, .largest = 12, .step = 1}),
            (std::vector<int64_t>{6, 9, 12}));
}

TEST(ChunkSearch, LosesAndSplitsNothing) {
  for (uint64_t i = 0; i < 300; ++i) {
    Dice dice(1, i);
    const std::vector<ParamGroup> groups = random_groups(dice);
    const int64_t replicas = dice.from_to(1, 7);
    const ChunkLayout layout = find_chunks(groups, {.replicas = replicas});
    EXPECT_EQ(layout.size % replicas, 0);
    int64_t group = 0, next = 0, waste = 0;
    for (const ChunkContent& chunk : layout.chunks) {
      if (chunk.group != group) {
        EXPECT_EQ(next, static_cast<int64_t>(groups[static_cast<size_t>(group)].elements.size()));
        EXPECT_EQ(chunk.group, ++group);
        next = 0;
      }
      ASSERT_EQ(chunk.first, next);
      ASSERT_GT(chunk.count, 0);
      int64_t elements = 0;
      for (int64_t p = 0; p < chunk.count; ++p) {
        elements += groups[static_cast<size_t>(group)].elements[static_cast<size_t>(next++)];
      }
      EXPECT_EQ(chunk.elements, elements);
      EXPECT_LE(elements, layout.size);
      waste += layout.size - elements;
    }
    EXPECT_EQ(group + 1, static_cast<int64_t>(groups.size()));
    EXPECT_EQ(next, static_cast<int64_t>(groups.back().elements.size()));
    EXPECT_EQ(layout.waste, waste);
  }
}

/// The waste of next-fit, from the sizes of the parameters alone.
int64_t waste_of(const std::vector<ParamGroup>& groups, int64_t size) {
  int64_t chunks = 0, elements = 0;
  for (const ParamGroup& group : groups) {
    int64_t room = 0;
    for (const int64_t p : group.elements) {
      if (p > room) {
        ++chunks;
        room = size;
      }
      room -= p;
      elements += p;
    }
  }
  return chunks * size - elements;
}

TEST(ChunkSearch, NoOtherCandidateWastesLess) {
  for (uint64_t i = 0; i < 300; ++i) {
    Dice dice(2, i);
    const std::vector<ParamGroup> groups = random_groups(dice);
    const ChunkSearch search{.replicas = dice.from_to(1, 7),
                             .largest = dice.from_to(90, 300),
                             .step = dice.from_to(1, 9)};
    const ChunkLayout best = find_chunks(groups, search);
    for (const int64_t size : chunk_sizes(groups, search)) {
      const int64_t waste = waste_of(groups, size);
      EXPECT_TRUE(waste > best.waste || (waste == best.waste && size >= best.size)) << size;
    }
  }
}

TEST(ChunkSearch, RefusesWhatCannotBe) {
  const std::vector<ParamGroup> groups = {{"a", {5, 9}}};
  EXPECT_THROW(layout_chunks(groups, 8), ConfigError);
  EXPECT_THROW(find_chunks(groups, {.smallest = 8}), ConfigError);
  EXPECT_THROW(find_chunks(groups, {.smallest = 12, .largest = 10}), ConfigError);
  EXPECT_THROW(find_chunks(groups, {.replicas = 0}), ConfigError);
  EXPECT_THROW(find_chunks({}, {}), ConfigError);
  EXPECT_THROW(find_chunks({{"a", {0}}}, {}), ConfigError);
}

}  // namespace
}  // namespace kuafu::memory
