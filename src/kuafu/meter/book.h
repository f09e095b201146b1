// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kuafu/base/errors.h"

namespace kuafu {

namespace device {
class Arena;
}

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

/// The bytes of one rank. Allocations hold a reference, so that a tensor may outlive its rank.
/// Thread-safe: a tensor may be freed on another thread.
class MemoryAccount;

/// What a book stands for where memory has tiers.
struct TierBook {
  std::string tier;    ///< "device", "host": for messages
  int64_t budget = 0;  ///< bytes, 0 = unlimited
  /// Bytes of address space in which all that is booked lies, blocks that are freed too; 0: on the
  /// system's heap.
  int64_t arena = 0;
  bool is_traced = true;  ///< whether what is taken and freed stands in the rank's trace
};

/// A tier whose budget is used up. Says what lies there, and how much beside it on the next one.
class TierFull : public OutOfMemory {
 public:
  struct Fields {
    int rank = 0;
    std::string tier;
    int64_t requested = 0, live = 0, budget = 0;
    BytesByCategory by_category{};
    std::string beside;       ///< the other tier; empty: there is none
    int64_t live_beside = 0;  ///< bytes there
  };
  explicit TierFull(Fields fields_);
  const char* what() const noexcept override { return words_.c_str(); }
  const Fields fields;

 private:
  std::string words_;
};

/// Whose FLOPs: an optimizer's products are none of the model's, so shares of peak leave them out.
enum class FlopsOf : uint8_t { kModel, kOptimizer };

/// One rank's memory, FLOPs and memory traffic.
class RankBook {
 public:
  /// `budget` in bytes, 0 = unlimited; the allocation that would pass it throws OutOfMemory.
  /// Scratch is free of the budget.
  explicit RankBook(int rank, int64_t budget = 0);
  /// The same of one tier. Throws ConfigError where there is no address space for its arena.
  RankBook(int rank, const TierBook& tier);

  void allocated(int64_t bytes, Category c);
  void freed(int64_t bytes, Category c);
  /// Moving scratch into another category is when it counts: it may throw OutOfMemory.
  void recategorised(int64_t bytes, Category from, Category to);
  /// Work of one op, by its formula: FLOPs (a multiply-add is two) and bytes read and written.
  /// This thread's recorder is told of it, counted or not.
  void work(int64_t flops, int64_t bytes, FlopsOf of = FlopsOf::kModel);

  int rank() const;
  int64_t live() const;  ///< bytes, without scratch
  BytesByCategory live_by_category() const;
  int64_t peak() const;                      ///< most bytes ever live, without scratch
  BytesByCategory at_peak() const;           ///< composition when the peak was reached
  BytesByCategory peak_by_category() const;  ///< each category's own peak (scratch too)
  /// The most bytes live, without scratch, since this was asked last.
  int64_t take_most();
  /// `other` stands for the tier beside this one: what TierFull tells of it.
  void put_beside(const RankBook& other);
  int64_t flops() const { return flops_; }  ///< of the model, without recomputation
  int64_t flops_recomputed() const { return flops_recomputed_; }
  int64_t flops_optimizer() const { return flops_optimizer_; }
  int64_t bytes_moved() const { return bytes_moved_; }

  /// Recomputed forward work is booked apart while true.
  bool is_recomputing = false;
  /// What works on states where they lie on the host says so in the trace while true.
  bool is_on_host = false;
  uint8_t trace_flags() const;  ///< of an op now
  /// FLOPs and bytes moved are booked only while true (off in validation and certificates).
  bool is_counting = true;
  /// Zeroes FLOPs and traffic, and lets peaks restart from what is live.
  void restart();

  /// What allocations refer to.
  const std::shared_ptr<MemoryAccount>& account() const { return account_; }

 private:
  friend class UnmeasuredScope;
  std::shared_ptr<MemoryAccount> account_;
  int64_t flops_ = 0, flops_recomputed_ = 0, flops_optimizer_ = 0, bytes_moved_ = 0;
};

class MemoryAccount {
 public:
  MemoryAccount(int rank, int64_t budget);
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  void allocated(int64_t bytes, Category c);
  void freed(int64_t bytes, Category c);
  void recategorised(int64_t bytes, Category from, Category to);
  /// Where what is booked lies; null: on the system's heap.
  device::Arena* arena() const;
  bool is_traced() const;

 private:
  friend class RankBook;
  friend class UnmeasuredScope;
  struct State;
  std::unique_ptr<State> state_;
};

/// The book of the rank this thread is; null outside ranks.
RankBook* current_book();

/// Makes `book` this thread's book until the scope ends. Null: allocations are booked to nobody.
class BookScope {
 public:
  explicit BookScope(RankBook* book);
  ~BookScope();
  BookScope(const BookScope&) = delete;
  BookScope& operator=(const BookScope&) = delete;

 private:
  RankBook* previous_;
};

/// What happens in the scope is no part of what `book` measures: FLOPs and traffic are not counted,
/// peaks stay as they were (what is still live at the end is in them). The budget holds.
class UnmeasuredScope {
 public:
  explicit UnmeasuredScope(RankBook& book);
  ~UnmeasuredScope();
  UnmeasuredScope(const UnmeasuredScope&) = delete;
  UnmeasuredScope& operator=(const UnmeasuredScope&) = delete;

 private:
  RankBook& book_;
  bool was_counting_;
  int64_t peak_;
  BytesByCategory at_peak_, peak_by_category_;
};

/// Allocations of this thread count as `c` until the scope ends. The default is kTemporary.
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
  RecomputeScope();
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  RankBook* book_;
  bool previous_ = false;
};

/// Work on states where they lie on the host, in this thread's book and where `is_there`.
class OnHostScope {
 public:
  explicit OnHostScope(bool is_there);
  ~OnHostScope();
  OnHostScope(const OnHostScope&) = delete;
  OnHostScope& operator=(const OnHostScope&) = delete;

 private:
  RankBook* book_;
};

}  // namespace kuafu
