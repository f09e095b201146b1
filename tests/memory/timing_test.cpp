// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/timing.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/memory/samples.h"

namespace kuafu::memory {
namespace {

using enum Access;

MoveTimes timed(const UseTrace& trace, int64_t budget, const Policy& policy, int64_t prefetch,
                const LinkRates& rates) {
  return time_moves(trace, budget, play(trace, budget, policy, {.prefetch = prefetch}), rates);
}

/// Four chunks of 10 bytes, one a moment, each moment a second.
UseTrace four_in_a_row(Access access) {
  UseTrace trace;
  trace.chunks.assign(4, {10});
  for (int64_t c = 0; c < 4; ++c) trace.moments.push_back({0, 1, {{c, access}}});
  return trace;
}

TEST(Stall, IsTheWholeLoadWithoutPrefetch) {
  // Half a second a load, nothing beside it.
  const MoveTimes timing = timed(four_in_a_row(kRead), 40, host_policy, 0, {20});
  EXPECT_DOUBLE_EQ(timing.stall(), 2);
  EXPECT_DOUBLE_EQ(timing.computing, 4);
  EXPECT_DOUBLE_EQ(timing.loading, 2);
  EXPECT_DOUBLE_EQ(timing.writing_back, 0);
}

TEST(Stall, IsNoneWherePrefetchHasTheTime) {
  EXPECT_DOUBLE_EQ(timed(four_in_a_row(kRead), 40, host_policy, 1, {20}).stall(), 0);
  // A load takes two seconds and hides behind one, whatever the depth.
  EXPECT_DOUBLE_EQ(timed(four_in_a_row(kRead), 40, host_policy, 1, {5}).stall(), 4);
  EXPECT_DOUBLE_EQ(timed(four_in_a_row(kRead), 30, host_policy, 2, {5}).stall(), 4);
}

TEST(Stall, ShrinksWithAFasterLink) {
  EXPECT_DOUBLE_EQ(timed(four_in_a_row(kRead), 40, host_policy, 0, {40}).stall(), 1);
}

TEST(Stall, WriteBacksHaveAQueueOfTheirOwn) {
  // Room for two: the write back of the chunk before ends before that of the next load begins.
  const MoveTimes wide = timed(four_in_a_row(kUpdate), 40, host_policy, 1, {20});
  EXPECT_DOUBLE_EQ(wide.stall(), 0);
  EXPECT_DOUBLE_EQ(wide.writing_back, 2);
  // Room for one: the load waits for the write back, the computing for both.
  EXPECT_DOUBLE_EQ(timed(four_in_a_row(kUpdate), 10, host_policy, 1, {20}).stall(), 4);
}

TEST(Stall, AChunkComesBackOnlyWhenItIsHome) {
  // Written, away for a moment of no time, and back: write back and load follow each other.
  const UseTrace trace{{{10}}, {{0, 1, {{0, kUpdate}}}, {0, 0, {}}}};
  EXPECT_DOUBLE_EQ(timed(trace, 100, host_policy, 0, {10}).stall(), 2);
}

TEST(Stall, DisksHaveTheirOwnRate) {
  UseTrace trace = four_in_a_row(kRead);
  trace.chunks[0].home = Tier::kDisk;
  EXPECT_DOUBLE_EQ(timed(trace, 40, host_policy, 0, {20, 5}).stall(), 3.5);
  EXPECT_THROW(timed(trace, 40, host_policy, 0, {20}), ConfigError);
}

/// Bytes on the device at one time, by the spans alone: a chunk has its space from the begin of the
/// move that brings it to the end of the one that drops it.
int64_t bytes_at(const UseTrace& trace, const Played& played, const MoveTimes& timing,
                 double time) {
  int64_t bytes = 0;
  for (size_t t = 0; t < timing.moments.size(); ++t) {
    const Interval& span = timing.moments[t];
    if (span.start <= time && time < span.end) {
      bytes += trace.moments[t % trace.moments.size()].in_use;
    }
  }
  for (size_t c = 0; c < trace.chunks.size(); ++c) {
    bool is_there = played.start.resident[c];
    for (size_t i = 0; i < played.moves.size(); ++i) {
      const Move& move = played.moves[i];
      if (move.chunk != static_cast<int64_t>(c)) continue;
      if (move.kind == MoveKind::kDrop && timing.moves[i].end <= time) is_there = false;
      const bool comes = move.kind == MoveKind::kLoad || move.kind == MoveKind::kMake;
      if (comes && timing.moves[i].start <= time) is_there = true;
    }
    if (is_there) bytes += trace.chunks[c].bytes;
  }
  return bytes;
}

TEST(Stall, BytesPassTheBudgetAtNoTime) {
  int64_t waits = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const Sample s = sample(5, i, shape_of(i));
    for (const Policy& policy : {Policy(host_policy), Policy(belady_policy)}) {
      const Played played = play(s.trace, s.budget, policy, {.prefetch = 2});
      const MoveTimes timing = time_moves(s.trace, s.budget, played, {8, 2});
      std::vector<double> times;
      for (const Interval& span : timing.moves) times.push_back(span.start);
      for (const Interval& span : timing.moments) times.push_back(span.start);
      for (const double time : times) {
        EXPECT_LE(bytes_at(s.trace, played, timing, time), s.budget) << s.trace << time;
      }
      waits += timing.stall() > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(waits, 100);
}

TEST(Stall, IsAtLeastEachQueuesBusyTimeLessComputing) {
  for (uint64_t i = 0; i < 300; ++i) {
    const Sample s = sample(6, i, shape_of(i));
    const MoveTimes timing = timed(s.trace, s.budget, lru_policy, 2, {8, 2});
    // Sums of a few hundred spans, each within eps of the whole.
    const double error = 1e-13 * (timing.seconds + 1);
    EXPECT_GE(timing.stall(), timing.loading - timing.computing - error) << s.trace;
    EXPECT_GE(timing.stall(), timing.writing_back - timing.computing - error) << s.trace;
    EXPECT_GE(timing.stall(), -error);
  }
}

}  // namespace
}  // namespace kuafu::memory
