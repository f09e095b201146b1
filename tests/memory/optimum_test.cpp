// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/optimum.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/memory/play.h"
#include "kuafu/memory/regret.h"
#include "kuafu/memory/samples.h"
#include "tests/memory/exhaustive.h"

namespace kuafu::memory {
namespace {

using enum Access;

UseTrace one_a_moment(const std::vector<ChunkUse>& order, const std::vector<int64_t>& bytes) {
  UseTrace trace;
  for (const int64_t b : bytes) trace.chunks.push_back({b});
  for (const ChunkUse& use : order) trace.moments.push_back({0, 1, {use}});
  return trace;
}

class OptimumTest : public ::testing::Test {
  void SetUp() override {
    if (!has_optimum()) GTEST_SKIP() << "no CBC";
  }
};

TEST(Segments, LieBetweenUsesAndHaveOneWriteBackAStretch) {
  // The picture of segments.h, with a chunk that is overwritten beside it.
  const UseTrace trace = {{{4}, {2}},
                          {{0, 0, {{0, kUpdate}}},
                           {0, 0, {{1, kRead}}},
                           {0, 0, {{0, kRead}}},
                           {0, 0, {{1, kOverwrite}}},
                           {0, 0, {{0, kRead}}},
                           {0, 0, {}}}};
  const Segments all = segments_of(trace, 10);
  EXPECT_EQ(all.stretches, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(all.room, (std::vector<int64_t>{6, 8, 6, 8, 6, 10}));
  EXPECT_EQ(all.segments,
            (std::vector<Segment>{
                {0, 0, 0, 2, 4, 0}, {0, 1, 2, 4, 4, 0}, {0, 2, 4, 0, 4, 0}, {1, 1, 3, 1, 2, 1}}));
  EXPECT_EQ(cost_of(trace, all, {true, true, true, true}), 0);
  EXPECT_EQ(cost_of(trace, all, {false, true, false, true}), 4 + 4 + 4);
  EXPECT_EQ(cost_of(trace, all, {false, false, false, false}), 3 * 4 + 4 + 2 + 2);
  EXPECT_THROW(cost_of(trace, segments_of(trace, 5), {true, true, true, true}), ConfigError);
}

TEST_F(OptimumTest, IsOfStepsThatAreAllTheSame) {
  // A loop over three chunks where two fit: a step keeps one of them. Two steps together keep three.
  const UseTrace loop = one_a_moment({{0}, {1}, {2}}, {10, 10, 10});
  EXPECT_EQ(least_bytes(loop, 20).bytes, 20);
  EXPECT_EQ(least_bytes(repeated(loop, 2), 20).bytes, 30);
  // The prices are CLP's, and what rounding may have added is taken off.
  EXPECT_NEAR(least_bytes_bound(loop, 20), 15, 15 * 1e-12);
  EXPECT_EQ(play(loop, 20, belady_policy).traffic.bytes(), 30);
}

TEST_F(OptimumTest, KnowsThatWrittenChunksCostTwice) {
  // Before moment 2 either 0, which was written, or 1 must leave; 1 is read again sooner.
  const UseTrace trace = one_a_moment({{0, kUpdate}, {1}, {2}, {1}}, {10, 10, 10});
  EXPECT_EQ(play(trace, 20, belady_policy).traffic, (Traffic{20, 10}));
  EXPECT_EQ(least_bytes(trace, 20).bytes, 20);  // 1 and 2 are loaded
}

TEST_F(OptimumTest, EqualsEveryStateTried) {
  for (uint64_t i = 0; i < 400; ++i) {
    const Sample s = sample(1, i, shape_of(i));
    if (s.trace.num_chunks() > 6) continue;
    const Optimum optimum = least_bytes(s.trace, s.budget);
    EXPECT_TRUE(optimum.is_proven);
    EXPECT_EQ(optimum.bytes, exhaustive_least_bytes(s.trace, s.budget))
        << "sample " << i << ", budget " << s.budget << "\n"
        << s.trace;
  }
}

TEST_F(OptimumTest, IsNotWhatPreprocessingMakesOfIt) {
  // CBC 2.10.8 says 29 here where it preprocesses, and calls that proven.
  const UseTrace trace = {{{3}, {3}, {2}, {7}, {15}},
                          {{0, 0, {{0}, {2, kUpdate}}},
                           {4, 0, {{0}}},
                           {8, 0, {}},
                           {8, 0, {{1}}},
                           {4, 0, {{4}}},
                           {0, 0, {{3}}}}};
  EXPECT_EQ(least_bytes(trace, 23).bytes, 28);
  EXPECT_EQ(exhaustive_least_bytes(trace, 23), 28);
}

TEST_F(OptimumTest, IsPlayedToTheByte) {
  for (uint64_t i = 0; i < 200; ++i) {
    const Sample s = sample(2, i, shape_of(i));
    const Optimum optimum = least_bytes(s.trace, s.budget);
    const Policy policy = keeping(s.trace, segments_of(s.trace, s.budget), optimum.is_kept);
    for (const int64_t prefetch : {0, 2}) {
      const Played played = play(s.trace, s.budget, policy, {.prefetch = prefetch});
      EXPECT_EQ(played.steps, 1);
      EXPECT_EQ(played.traffic.bytes(), optimum.bytes) << s.budget << "\n" << s.trace;
    }
  }
}

TEST_F(OptimumTest, StandsBetweenTheBoundAndEveryPolicy) {
  for (uint64_t i = 0; i < 150; ++i) {
    const Sample s = sample(3, i, shape_of(i));
    const double bound = least_bytes_bound(s.trace, s.budget);
    EXPECT_LE(bound, static_cast<double>(least_bytes(s.trace, s.budget).bytes));
    for (const auto& entry : builtin_policies().entries()) {
      for (const int64_t prefetch : {0, 2}) {
        const Played played = play(s.trace, s.budget, entry.make, {.prefetch = prefetch});
        const auto steps = static_cast<double>(played.steps);
        if (played.steps > 4) continue;  // each is held to the bound, and these to the optimum
        const Optimum optimum = found_least_bytes(repeated(s.trace, played.steps), s.budget);
        EXPECT_LE(steps * bound, static_cast<double>(optimum.bytes) * (1 + 1e-12));
        EXPECT_LE(optimum.bytes, played.traffic.bytes()) << entry.name << " " << s.trace;
      }
    }
  }
}

TEST_F(OptimumTest, OfChangesAtHomeIsThatOfAllStatesAndBelowEveryPolicy) {
  int64_t fixed = 0;
  for (uint64_t i = 0; i < 80; ++i) {
    const Sample s = sample_at_home(6, i);
    const Optimum optimum = least_bytes(s.trace, s.budget);
    const Segments all = segments_of(s.trace, s.budget);
    fixed += all.fixed;
    if (s.trace.num_chunks() <= kMostExhaustive) {
      EXPECT_EQ(optimum.bytes, exhaustive_least_bytes(s.trace, s.budget)) << s.budget << "\n"
                                                                          << s.trace;
    }
    EXPECT_EQ(play(s.trace, s.budget, keeping(s.trace, all, optimum.is_kept)).traffic.bytes(),
              optimum.bytes);
    EXPECT_LE(optimum.relaxed, static_cast<double>(optimum.bytes));
    for (const auto& entry : builtin_policies().entries()) {
      for (const int64_t prefetch : {0, 2}) {
        const Played played = play(s.trace, s.budget, entry.make, {.prefetch = prefetch});
        if (played.steps > 1) continue;
        EXPECT_LE(optimum.bytes, played.traffic.bytes()) << entry.name << " " << s.trace;
      }
    }
  }
  EXPECT_GT(fixed, 0);
}

/// Where every chunk has one size, none is written and budget and what is in use are whole chunks,
/// what may be kept are intervals of time that take one place each. On the line of all steps their
/// matrix is totally unimodular, so that the best mean over ever more steps is the relaxation's; and
/// where places run out, taking the interval away that ends last is best, which is Belady's rule.
TEST_F(OptimumTest, BeladyIsTheBoundOnCleanEqualChunks) {
  int64_t longer = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const Sample s = sample(4, i, {2, 8, 2, 12, true, true});
    const Played played = play(s.trace, s.budget, belady_policy);
    const double mean = played.bytes_a_step(), bound = least_bytes_bound(s.trace, s.budget);
    // Both are counts of chunks over a count of steps, far coarser than rounding.
    EXPECT_NEAR(mean, bound, 1e-9 * (mean + 1)) << s.budget << "\n" << s.trace;
    longer += played.steps > 1 ? 1 : 0;
  }
  EXPECT_GT(longer, 0);
}

TEST_F(OptimumTest, AutoIsTheBoundWhereNothingOutlivesTheStep) {
  for (uint64_t i = 0; i < 200; ++i) {
    Sample s = sample(5, i, {2, 8, 2, 12, true, true});
    s.trace.moments.push_back({s.budget, 0, {}});  // the end of the step takes the whole device
    const Played played = play(s.trace, s.budget, auto_policy, {.margin = 0});
    EXPECT_EQ(played.traffic.bytes(), least_bytes(s.trace, s.budget).bytes) << s.trace;
  }
}

TEST_F(OptimumTest, EndsWithWhatItHas) {
  // Sizes without a common divisor, so that the relaxation is far from whole.
  const Sample s = sample(9, 9, {30, 30, 60, 60});
  const Optimum ended = least_bytes(s.trace, s.budget, {.seconds = 0});
  EXPECT_LE(ended.relaxed, ended.bound);
  EXPECT_LE(ended.bound, static_cast<double>(ended.bytes));
  EXPECT_GE(ended.gap(), 0);
  const Policy policy = keeping(s.trace, segments_of(s.trace, s.budget), ended.is_kept);
  EXPECT_EQ(play(s.trace, s.budget, policy).traffic.bytes(), ended.bytes);
}

TEST_F(OptimumTest, TooSmallABudgetIsOutOfMemory) {
  const UseTrace trace = one_a_moment({{0}}, {10});
  EXPECT_THROW(least_bytes(trace, 9), OutOfMemory);
  EXPECT_THROW(least_bytes_bound(trace, 9), OutOfMemory);
  EXPECT_EQ(least_bytes(trace, 10).bytes, 0);
}

TEST_F(OptimumTest, CountsBytesOfRealSizes) {
  const int64_t unit = int64_t{1} << 20, large = int64_t{1} << 40;
  const UseTrace trace = one_a_moment({{0}, {1}, {2}}, {large, large + unit, large});
  const Optimum optimum = least_bytes(trace, 2 * large);
  EXPECT_EQ(optimum.bytes, 3 * large + unit);
  EXPECT_TRUE(optimum.is_proven);
  EXPECT_EQ(least_bytes(trace, 2 * large + unit).bytes, 2 * large);
}

TEST_F(OptimumTest, ClaimsNoMoreThanTolerancesTell) {
  // One byte of 2^40 is beyond them.
  const int64_t large = int64_t{1} << 40;
  const UseTrace trace = one_a_moment({{0}, {1}, {2}}, {large, large + 1, large});
  const Optimum optimum = least_bytes(trace, 2 * large);
  EXPECT_LE(optimum.bound, static_cast<double>(3 * large + 1));
  EXPECT_GE(optimum.bytes, 3 * large + 1);
}

TEST_F(OptimumTest, IsAPolicyOfTheRegistry) {
  const PolicyRule& optimal = builtin_policies().find("optimal");
  for (uint64_t i = 0; i < 60; ++i) {
    const Sample s = sample_at_home(8, i);
    const Optimum least = least_bytes(s.trace, s.budget);
    for (const int64_t prefetch : {0, 2}) {
      const Played played = play(s.trace, s.budget, optimal, {.prefetch = prefetch});
      EXPECT_EQ(played.steps, 1);
      EXPECT_EQ(played.traffic.bytes(), least.bytes) << s.budget << "\n" << s.trace;
    }
  }
}

TEST_F(OptimumTest, IsSearchedForOnce) {
  const Sample s = sample(9, 9, shape_of(9));
  const Optimum first = found_least_bytes(s.trace, s.budget);
  // The seconds of a search are never the same twice: these are those of the first.
  EXPECT_EQ(found_least_bytes(s.trace, s.budget).seconds, first.seconds);
  EXPECT_EQ(found_least_bytes(s.trace, s.budget, {.seconds = 1}).seconds, first.seconds);
  EXPECT_NE(found_least_bytes(s.trace, s.budget + 1).seconds, first.seconds);
}

TEST_F(OptimumTest, OfARecordSaysWhyThereIsNone) {
  const Sample s = sample(3, 9, shape_of(9));
  const LeastBytes least = least_for_record(s.trace, s.budget);
  EXPECT_TRUE(least.is_known && least.is_proven);
  EXPECT_EQ(least.bytes, least_bytes(s.trace, s.budget).bytes);
  EXPECT_EQ(least.why_not, "");
  EXPECT_EQ(least.gap(), 0);
  const LeastBytes alone = least_for_record({}, s.budget);
  EXPECT_FALSE(alone.is_known);
  EXPECT_EQ(alone.why_not, "no training step was made");
  EXPECT_FALSE(least_for_record(s.trace, 0).is_known);
  EXPECT_NE(least_for_record(s.trace, 0).why_not, "");
}

// A search of no time has the relaxation rounded: a bound, a choice, and what lies between.
TEST_F(OptimumTest, OfARecordSaysWhatIsNotProven) {
  int64_t unproven = 0;
  for (uint64_t i = 9; i < 400; i += 10) {
    const Sample s = sample(5, i, shape_of(i));
    const LeastBytes least = least_for_record(s.trace, s.budget, {.seconds = 0});
    EXPECT_TRUE(least.is_known);
    EXPECT_LE(least.bound, static_cast<double>(least.bytes));
    EXPECT_EQ(least.is_proven, least.why_not.empty());
    if (least.is_proven) continue;
    ++unproven;
    EXPECT_EQ(least.why_not, "not proven in 0 s of search");
    EXPECT_GT(least.gap(), 0);
    EXPECT_LT(least.gap(), 1);
  }
  EXPECT_GT(unproven, 0);
}

TEST(Optimum, OfARecordSaysThatItIsNotBuilt) {
  if (has_optimum()) GTEST_SKIP() << "CBC is there";
  const Sample s = sample(3, 9, shape_of(9));
  EXPECT_EQ(least_for_record(s.trace, s.budget).why_not.find("this build has no CBC"), 0u);
}

TEST(Optimum, SaysThatItIsNotBuilt) {
  if (has_optimum()) GTEST_SKIP() << "CBC is there";
  EXPECT_THROW(least_bytes_bound({}, 1), Unavailable);
  EXPECT_THROW(least_bytes({}, 1), Unavailable);
}

}  // namespace
}  // namespace kuafu::memory
