// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/device/best_fit.h"

namespace kuafu::device {

/// A block that no free block of an arena is large enough for: the budget is used up, or what is
/// left of it lies in pieces.
class ArenaFull : public OutOfMemory {
 public:
  ArenaFull(int rank_, std::string tier_, int64_t requested_, int64_t budget_, FitStats stats_);
  const char* what() const noexcept override { return words_.c_str(); }
  std::string tier;
  FitStats stats;  ///< `largest_free` among them

 private:
  std::string words_;
};

/// Freed memory that was written to. Names the block that had been there.
class UseAfterFree : public InternalError {
 public:
  using InternalError::InternalError;
};

/// Whether freed memory is filled with numbers that are NaN in every float type, and looked at
/// again before it is given out. Costs two passes over all that is freed, and keeps its pages.
enum class Poison { kOff, kOn };
/// KUAFU_POISON of the environment, "on" or "off"; not set: on in a build with assertions (Debug).
/// Throws ConfigError for another word.
Poison poison_choice();
/// What becomes of the whole pages of a block that is freed.
enum class Pages { kKept, kReleased };
/// Huge pages save page faults, but come and go 2 MiB at a time, so residency is coarser than the
/// books.
enum class HugePages { kOff, kOn };

struct ArenaOptions {
  int rank = 0;
  std::string tier = "host";  ///< for messages
  int64_t budget = 0;         ///< bytes; blocks are never more than these
  Poison poison = Poison::kOff;
  HugePages huge_pages = HugePages::kOff;
};

/// The memory of one rank on one tier: one region of address space that takes pages as they are
/// touched, a guard page on either side. All members may be called from any thread, because
/// LibTorch frees on the threads of its engine. It outlives what lies in it.
class Arena {
 public:
  static constexpr int64_t kAlignment = 64;

  /// @pre options.budget is at least one block of kAlignment bytes.
  explicit Arena(ArenaOptions options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Throws ArenaFull; with poison UseAfterFree where what it would give was written to. No bytes:
  /// null.
  void* allocate(int64_t bytes);

  /// kReleased: the pages that are wholly free now leave the process. Null is nothing.
  void free(void* data, Pages pages = Pages::kKept);

  /// All wholly free pages leave the process. A poisoned arena keeps them.
  void release_pages();

  /// Throws UseAfterFree where freed memory was written to. Finds nothing without poison.
  void check_poison() const;

  /// What the system says: pages of the region that are in memory.
  int64_t resident_bytes() const;

  FitStats stats() const;
  int64_t budget() const { return options_.budget; }

 private:
  struct Grave {  // what is known of freed bytes, by their first offset
    int64_t end = 0;
    int64_t block_begin = 0, block_bytes = 0, number = 0;
  };

  void release(ByteRange range);
  void bury(int64_t offset, int64_t asked, int64_t held);
  void dig_up(ByteRange range);
  void check_grave(int64_t begin, const Grave& grave) const;

  const ArenaOptions options_;
  const int64_t page_;
  int64_t mapped_ = 0;           // bytes between the guards
  std::byte* region_ = nullptr;  // behind the first guard
  mutable std::mutex mutex_;     // of all below
  BestFit fit_;
  std::map<int64_t, Grave> graves_;  // with poison: freed bytes that were not given out again
  int64_t num_freed_ = 0;
};

}  // namespace kuafu::device
