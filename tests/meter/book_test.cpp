// SPDX-License-Identifier: Apache-2.0
#include "kuafu/meter/book.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/trace.h"
#include "tests/meter/categories.h"

namespace kuafu {
namespace {

TEST(RankBook, PeakIsTheMostEverLiveAndRemembersItsComposition) {
  RankBook book(3);
  book.allocated(100, Category::kParameter);
  book.allocated(40, Category::kActivation);
  book.freed(40, Category::kActivation);
  book.allocated(30, Category::kGradient);
  EXPECT_EQ(book.live(), 130);
  EXPECT_EQ(book.peak(), 140);
  EXPECT_EQ(of(book.at_peak(), Category::kActivation), 40);
  EXPECT_EQ(of(book.at_peak(), Category::kGradient), 0);
  EXPECT_EQ(of(book.peak_by_category(), Category::kGradient), 30);
}

TEST(RankBook, ScratchIsInNoPeakButItsOwn) {
  RankBook book(0, 50);
  book.allocated(1000, Category::kScratch);
  EXPECT_EQ(book.live(), 0);
  EXPECT_EQ(book.peak(), 0);
  book.allocated(10, Category::kTemporary);
  EXPECT_EQ(of(book.at_peak(), Category::kScratch), 0);
  EXPECT_EQ(of(book.peak_by_category(), Category::kScratch), 1000);
}

TEST(RankBook, KeepingScratchCountsAgainstTheBudget) {
  RankBook book(2, 50);
  book.allocated(40, Category::kActivation);
  book.allocated(20, Category::kScratch);
  try {
    book.recategorised(20, Category::kScratch, Category::kActivation);
    FAIL() << "60 bytes fit into 50";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(std::pair(e.rank, e.requested), std::pair(2, int64_t{20}));
    EXPECT_EQ(std::pair(e.live, e.budget), std::pair(int64_t{40}, int64_t{50}));
  }
  EXPECT_EQ(of(book.live_by_category(), Category::kScratch), 20);
  EXPECT_EQ(book.live(), 40);
}

TEST(RankBook, RestartLetsPeaksBeginAtWhatIsLive) {
  RankBook book(0);
  book.allocated(70, Category::kTemporary);
  book.freed(70, Category::kTemporary);
  book.allocated(20, Category::kParameter);
  book.work(5, 6);
  book.restart();
  EXPECT_EQ(book.peak(), 20);
  EXPECT_EQ(of(book.peak_by_category(), Category::kTemporary), 0);
  EXPECT_EQ(of(book.at_peak(), Category::kParameter), 20);
  EXPECT_EQ(book.flops(), 0);
  EXPECT_EQ(book.bytes_moved(), 0);
}

TEST(RankBook, RecomputedWorkIsApartAndUncountedWorkIsNowhere) {
  RankBook book(0);
  const BookScope scope(&book);
  book.work(10, 1);
  {
    const RecomputeScope again;
    const RecomputeScope nested;
    book.work(7, 1);
  }
  EXPECT_FALSE(book.is_recomputing);
  book.is_counting = false;
  book.work(100, 100);
  EXPECT_EQ(book.flops(), 10);
  EXPECT_EQ(book.flops_recomputed(), 7);
  EXPECT_EQ(book.bytes_moved(), 2);
}

TEST(RankBook, WhatIsUnmeasuredIsInNoPeakAndNoCountButInTheBudget) {
  RankBook book(0, 1000);
  book.allocated(100, Category::kParameter);
  book.work(7, 9);
  const BytesByCategory before = book.peak_by_category();
  {
    const UnmeasuredScope scope(book);
    book.allocated(700, Category::kActivation);
    book.work(50, 50);
    EXPECT_THROW(book.allocated(201, Category::kActivation), OutOfMemory);
    book.freed(700, Category::kActivation);
  }
  EXPECT_EQ(book.peak(), 100);
  EXPECT_EQ(book.at_peak(), before);
  EXPECT_EQ(book.peak_by_category(), before);
  EXPECT_EQ(book.flops(), 7);
  EXPECT_TRUE(book.is_counting);
  {
    const UnmeasuredScope scope(book);
    book.allocated(30, Category::kGradient);  // and stays
  }
  EXPECT_EQ(book.peak(), 130);
  EXPECT_EQ(book.at_peak()[static_cast<size_t>(Category::kGradient)], 30);
}

TEST(RankBook, TellsTheRecorderOfAllWorkInOrder) {
  RankBook book(0);
  TraceRecorder recorder(TraceRecorder::Clock::kNone);
  const TraceScope traced(&recorder);
  book.work(1, 2);
  const TracePhase phase("not counted");
  book.is_counting = false;
  book.work(3, 4);
  const Trace& trace = recorder.trace();
  ASSERT_EQ(trace.records.size(), 3U);
  EXPECT_EQ(trace.describe(trace.records[0]), "op work (), work, 1 FLOPs, 2 bytes");
  EXPECT_EQ(trace.describe(trace.records[2]), "op work (), work, 3 FLOPs, 4 bytes");
}

TEST(RankBook, RefusesANegativeBudget) { EXPECT_THROW(RankBook(0, -1), ConfigError); }

TEST(Scopes, RestoreWhatWasBefore) {
  RankBook a(0), b(1);
  EXPECT_EQ(current_book(), nullptr);
  {
    const BookScope outer(&a);
    {
      const BookScope inner(&b);
      const CategoryScope category(Category::kGradient);
      EXPECT_EQ(current_book(), &b);
      EXPECT_EQ(current_category(), Category::kGradient);
    }
    EXPECT_EQ(current_book(), &a);
  }
  EXPECT_EQ(current_book(), nullptr);
  EXPECT_EQ(current_category(), Category::kTemporary);
}

TEST(Category, HasAName) {
  EXPECT_EQ(to_string(Category::kParameter), "parameter");
  EXPECT_EQ(to_string(Category::kScratch), "scratch");
}

}  // namespace
}  // namespace kuafu
