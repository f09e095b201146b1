// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace kuafu {

/// What an allocation is for. Scratch is memory an op takes and gives back inside itself: it
/// differs between devices and is kept apart from every peak.
enum class Category : uint8_t {
  kParameter,
  kGradient,
  kOptimizer,
  kActivation,
  kCommunication,
  kTemporary,
  kScratch,
};
inline constexpr int kNumCategories = 7;

/// "parameter", "gradient", "optimizer", "activation", "communication", "temporary", "scratch".
std::string_view to_string(Category c);

using BytesByCategory = std::array<int64_t, kNumCategories>;

/// One rank's memory, FLOPs and memory traffic. Allocations may be freed on another thread.
class RankBook {
 public:
  /// `budget` in bytes, 0 = unlimited; the allocation that would pass it throws OutOfMemory.
  explicit RankBook(int rank, int64_t budget = 0) : rank_(rank), budget_(budget) {}

  void allocated(int64_t bytes, Category c);
  void freed(int64_t bytes, Category c);
  void recategorised(int64_t bytes, Category from, Category to);
  /// Work of one op, by its formula: FLOPs (a multiply-add is two) and bytes read and written.
  void work(int64_t flops, int64_t bytes);

  int rank() const { return rank_; }
  int64_t live() const;                    ///< bytes, without scratch
  BytesByCategory live_by_category() const;
  int64_t peak() const;                    ///< most bytes ever live, without scratch
  BytesByCategory at_peak() const;         ///< composition when the peak was reached
  BytesByCategory peak_by_category() const;  ///< each category's own peak (scratch too)
  int64_t flops() const { return flops_; }                        ///< without recomputation
  int64_t flops_recomputed() const { return flops_recomputed_; }
  int64_t bytes_moved() const { return bytes_moved_; }

  /// Recomputed forward work is booked apart while true.
  bool is_recomputing = false;
  /// FLOPs and bytes moved are booked only while true (off in validation and certificates).
  bool is_counting = true;
  /// Zeroes FLOPs and traffic, and lets peaks restart from what is live.
  void restart();

 private:
  mutable std::mutex mutex_;
  int rank_;
  int64_t budget_;
  BytesByCategory live_{}, peak_{}, at_peak_{};
  int64_t total_ = 0, peak_total_ = 0;
  int64_t flops_ = 0, flops_recomputed_ = 0, bytes_moved_ = 0;
};

/// The book of the rank this thread is; null outside ranks.
RankBook* current_book();

/// Makes `book` this thread's book until the scope ends.
class BookScope {
 public:
  explicit BookScope(RankBook* book);
  ~BookScope();
  BookScope(const BookScope&) = delete;
  BookScope& operator=(const BookScope&) = delete;

 private:
  RankBook* previous_;
};

/// Allocations of this thread count as `c` until the scope ends.
class CategoryScope {
 public:
  explicit CategoryScope(Category c);
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;
  CategoryScope& operator=(const CategoryScope&) = delete;

 private:
  Category previous_;
};
Category current_category();

/// Forward work of this thread counts as recomputation until the scope ends.
class RecomputeScope {
 public:
  RecomputeScope() : book_(current_book()), previous_(book_ != nullptr && book_->is_recomputing) {
    if (book_ != nullptr) book_->is_recomputing = true;
  }
  ~RecomputeScope() {
    if (book_ != nullptr) book_->is_recomputing = previous_;
  }
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  RankBook* book_;
  bool previous_;
};

}  // namespace kuafu
