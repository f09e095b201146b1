// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/moves.h"

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/memory/play.h"
#include "kuafu/memory/samples.h"

namespace kuafu::memory {
namespace {

using enum MoveKind;

/// Two chunks of 4 bytes that do not fit together; 0 is updated, 1 read, 2 of 1 byte overwritten.
UseTrace small_trace() {
  return {{{4}, {4}, {1}},
          {{0, 0, {{0, Access::kUpdate}}},
           {1, 0, {{1, Access::kRead}}},
           {0, 0, {{2, Access::kOverwrite}}}}};
}
constexpr int64_t kBudget = 6;

/// What replay says of moves given by moment, chunk and kind; empty where they hold.
struct Short {
  int64_t moment, chunk;
  MoveKind kind;
};
std::string broken(const std::vector<Short>& moves, int64_t steps = 1) {
  std::vector<Move> all;
  for (const Short& m : moves) all.push_back(make_move(small_trace(), m.moment, m.chunk, m.kind));
  try {
    replay(small_trace(), kBudget, empty_device(small_trace()), all, steps);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(Moves, HoldTheRules) {
  EXPECT_EQ(
      broken({{0, 0, kLoad}, {1, 0, kWriteBack}, {1, 0, kDrop}, {1, 1, kLoad}, {2, 2, kMake}}), "");
}

TEST(Moves, AUsedChunkMustBeThere) {
  EXPECT_EQ(broken({}), "moment 0 uses chunk 0, which is not on the device");
}

TEST(Moves, WhatChangesAtHomeIsNotOnTheDevice) {
  const UseTrace trace = {{{4}}, {{0, 0, {{0, Access::kRead}}}, {0, 0, {{0, Access::kAtHome}}}}};
  const Move load = make_move(trace, 0, 0, kLoad), drop = make_move(trace, 1, 0, kDrop);
  EXPECT_EQ(used_bytes(trace, 1), 0);
  EXPECT_EQ(replay(trace, 4, empty_device(trace), {load, drop}, 1).live,
            (std::vector<int64_t>{4, 0}));
  try {
    replay(trace, 4, empty_device(trace), {load}, 1);
    FAIL() << "the chunk is old";
  } catch (const ConfigError& e) {
    EXPECT_STREQ(
        e.what(),
        "moment 1 changes chunk 0 at home while it is on the device, where it would be old");
  }
}

TEST(Moves, NothingComesTwice) {
  EXPECT_EQ(broken({{0, 0, kLoad}, {0, 0, kLoad}}),
            "move \"0: load 0, host to device\", which is on the device already");
}

TEST(Moves, LiveBytesNeverPassTheBudget) {
  EXPECT_EQ(broken({{0, 0, kLoad}, {0, 1, kLoad}}),
            "move \"0: load 1, host to device\", which makes 8 live bytes, budget 6");
  // The chunk fits where it comes; what is in use a moment later does not fit beside it.
  EXPECT_EQ(
      broken({{0, 0, kLoad}, {0, 2, kLoad}, {1, 0, kWriteBack}, {1, 0, kDrop}, {1, 1, kLoad}}), "");
  OnDevice on_device = empty_device(small_trace());
  on_device.resident = {true, true, false};
  EXPECT_THROW(replay(small_trace(), kBudget, on_device, {}, 1), ConfigError);
}

TEST(Moves, DirtyChunksAreWrittenBackBeforeTheyAreDropped) {
  EXPECT_EQ(broken({{0, 0, kLoad}, {1, 0, kDrop}}),
            "move \"1: drop 0\", which is dirty and read again: write it back first");
}

TEST(Moves, CleanChunksAreDroppedFree) {
  EXPECT_EQ(broken({{0, 0, kLoad},
                    {1, 0, kWriteBack},
                    {1, 0, kDrop},
                    {1, 1, kLoad},
                    {2, 1, kDrop},
                    {2, 2, kMake}}),
            "");
  EXPECT_EQ(
      broken({{0, 0, kLoad}, {1, 0, kWriteBack}, {1, 0, kWriteBack}}),
      "move \"1: write back 0, device to host\", which is clean: its home has the same bytes");
}

TEST(Moves, WhatIsOverwrittenNextIsDroppedDirty) {
  EXPECT_EQ(broken({{0, 0, kLoad},
                    {1, 0, kWriteBack},
                    {1, 0, kDrop},
                    {1, 1, kLoad},
                    {2, 2, kMake},
                    {3, 1, kDrop},
                    {3, 2, kDrop},
                    {3, 0, kLoad},
                    {4, 0, kWriteBack},
                    {4, 0, kDrop},
                    {4, 1, kLoad},
                    {5, 2, kMake}},
                   2),
            "");
}

TEST(Moves, OnlyWhatIsOverwrittenComesWithoutItsBytes) {
  EXPECT_EQ(
      broken({{0, 0, kMake}}),
      "move \"0: make 0\", which this moment does not overwrite: it would be used without its "
      "bytes");
}

TEST(Moves, GoBetweenDeviceAndHomeInOrder) {
  const Move astray{0, 0, Tier::kDisk, Tier::kDevice, kLoad};
  EXPECT_THROW(replay(small_trace(), kBudget, empty_device(small_trace()), {astray}, 1),
               ConfigError);
  EXPECT_NE(broken({{1, 1, kLoad}, {0, 0, kLoad}}), "");
  EXPECT_NE(broken({{0, 3 - 3, kLoad}, {7, 1, kLoad}}), "");
}

TEST(Moves, AnyOneMoveLeftOutIsFound) {
  int64_t left_out = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    const Sample s = sample(11, i, shape_of(i));
    for (const auto& entry : builtin_policies().entries()) {
      if (!entry.make.lacks.empty()) continue;
      const Played played = play(s.trace, s.budget, entry.make, {.prefetch = 2});
      for (size_t without = 0; without < played.moves.size(); ++without) {
        std::vector<Move> moves = played.moves;
        moves.erase(moves.begin() + static_cast<int64_t>(without));
        try {
          const ReplayedMoves end = replay(s.trace, s.budget, played.start, moves, played.steps);
          EXPECT_NE(end.end, played.start) << s.trace << played.moves[without];
        } catch (const ConfigError&) {
        }
        ++left_out;
      }
    }
  }
  EXPECT_GT(left_out, 1000);
}

}  // namespace
}  // namespace kuafu::memory
