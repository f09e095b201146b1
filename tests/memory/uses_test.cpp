// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/uses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

using enum Access;

/// Chunk 0 is used at 0 and 2, chunk 1 at 1, chunk 2 never.
UseTrace three_moments() {
  return {{{4, "parameters"}, {6, "slots", Tier::kDisk}, {8}},
          {{1, 0.5, {{0, kRead}}}, {2, 1, {{1, kUpdate}}}, {3, 0, {{0, kOverwrite}}}}};
}

std::string refusal_of(const UseTrace& trace) {
  try {
    check(trace);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(Uses, AreRefusedWithTheMomentOrTheChunk) {
  EXPECT_EQ(refusal_of(three_moments()), "");
  const auto wrong = [](auto change) {
    UseTrace trace = three_moments();
    change(trace);
    return refusal_of(trace);
  };
  EXPECT_EQ(wrong([](UseTrace& t) { t.chunks[1].bytes = 0; }),
            "chunk 1 has 0 bytes; it needs some");
  EXPECT_EQ(wrong([](UseTrace& t) { t.chunks[2].home = Tier::kDevice; }),
            "chunk 2 is at home on the device, so that it cannot leave; choose host or disk");
  EXPECT_EQ(wrong([](UseTrace& t) { t.chunks[1].bytes = std::numeric_limits<int64_t>::max() - 3; }),
            "the chunks up to number 1 have more than 2^63 - 1 bytes");
  EXPECT_EQ(wrong([](UseTrace& t) { t.moments.clear(); }),
            "a trace of uses without a moment; a step has at least one");
  EXPECT_EQ(wrong([](UseTrace& t) { t.moments[1].in_use = -1; }),
            "moment 1 has -1 bytes in use; the least is 0");
  EXPECT_EQ(wrong([](UseTrace& t) { t.moments[1].seconds = std::nan(""); }),
            "moment 1 computes nan s; the least is 0");
  EXPECT_EQ(wrong([](UseTrace& t) { t.moments[2].uses.push_back({3}); }),
            "moment 2 uses chunk 3 of 3");
  EXPECT_EQ(wrong([](UseTrace& t) { t.moments[2].uses.push_back({0}); }),
            "moment 2 uses chunk 0 twice; make it one use");
}

TEST(Uses, ArePrinted) {
  EXPECT_EQ(text(three_moments()),
            "chunk 0: 4 bytes, host, parameters\nchunk 1: 6 bytes, disk, slots\n"
            "chunk 2: 8 bytes, host\n0: 1 in use, 0.5 s, 0 read\n1: 2 in use, 1 s, 1 update\n"
            "2: 3 in use, 0 s, 0 overwrite\n");
}

TEST(Uses, TooSmallABudgetIsOutOfMemoryWithLiveBytes) {
  EXPECT_NO_THROW(check_fits(three_moments(), 8));
  try {
    check_fits(three_moments(), 7);
    FAIL() << "moment 1 needs 8 bytes";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.requested, 6);
    EXPECT_EQ(e.live, 2);
    EXPECT_EQ(e.budget, 7);
    EXPECT_NE(std::string(e.what()).find("moment 1"), std::string::npos) << e.what();
  }
}

TEST(Uses, NextUsesGoOverTheEndOfTheStep) {
  const UsesByChunk uses(three_moments());
  EXPECT_EQ(uses.next(0, 0), (NextUse{0, false, kRead}));
  EXPECT_EQ(uses.next(0, 1), (NextUse{1, false, kOverwrite}));
  EXPECT_EQ(uses.next(1, 2), (NextUse{2, true, kUpdate}));
  EXPECT_EQ(uses.next(2, 1), (NextUse{3, true, kRead}));  // never
  EXPECT_TRUE(uses.is_dead(0, 1));
  EXPECT_FALSE(uses.is_dead(0, 0));
  EXPECT_FALSE(uses.is_dead(2, 0));
}

TEST(Uses, AgesGoOverItsBeginning) {
  const UsesByChunk uses(three_moments());
  EXPECT_EQ(uses.age(0, 0), 1);
  EXPECT_EQ(uses.age(0, 2), 2);
  EXPECT_EQ(uses.age(1, 1), 3);  // in the step before, not now
  EXPECT_EQ(uses.age(2, 1), 4);  // never
}

TEST(Uses, RepeatedStepsAreOneStep) {
  const UseTrace twice = repeated(three_moments(), 2);
  ASSERT_EQ(twice.num_moments(), 6);
  EXPECT_EQ(twice.moments[4], three_moments().moments[1]);
  EXPECT_EQ(UsesByChunk(twice).next(1, 2), (NextUse{2, false, kUpdate}));
}

}  // namespace
}  // namespace kuafu::memory
