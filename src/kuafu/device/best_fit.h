// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace kuafu::device {

/// Bytes [begin, end) of a region.
struct ByteRange {
  int64_t begin = 0, end = 0;
  int64_t bytes() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

/// What a region holds, and what it held at most. `live` is what was asked for, `held` the blocks
/// that serve it, which are rounded up to the alignment.
struct FitStats {
  int64_t live = 0, held = 0;
  int64_t peak_live = 0, peak_held = 0;
  int64_t high_water = 0;  ///< end of the highest block there ever was
  int64_t num_live = 0, num_free = 0;
  int64_t free = 0, largest_free = 0;
  /// The part of the free bytes that the largest free block is not: 0 where one block is all.
  double fragmentation() const {
    return free == 0 ? 0 : 1 - static_cast<double>(largest_free) / static_cast<double>(free);
  }
};

/// Places for blocks in a region: the smallest free block that is large enough, of equal ones the
/// lowest; free neighbours are one block at any moment. It knows offsets, not memory, so that ranks
/// without memory have the same books. Not thread-safe.
class BestFit {
 public:
  /// @pre alignment is a power of two.
  BestFit(int64_t bytes, int64_t alignment);

  /// Where a block for `bytes` lies from now on; nothing where no free block is large enough.
  /// @pre bytes is positive.
  std::optional<int64_t> take(int64_t bytes);

  /// Ends the block at `offset`; the free block that it is a part of now. InternalError where no
  /// block that lives begins there.
  ByteRange give(int64_t offset);

  /// The bytes that block `offset` was asked to have, and those that it has.
  std::pair<int64_t, int64_t> bytes_of(int64_t offset) const;

  std::vector<ByteRange> free_blocks() const;  ///< by address
  FitStats stats() const;
  int64_t capacity() const { return capacity_; }

 private:
  struct Block {
    int64_t bytes = 0;
    int64_t asked = 0;  // 0: the block is free
  };
  using Blocks = std::map<int64_t, Block>;  // by offset; they cover the region without gaps

  void add_free(Blocks::iterator block) { free_.insert({block->second.bytes, block->first}); }
  void drop_free(Blocks::iterator block) { free_.erase({block->second.bytes, block->first}); }
  Blocks::const_iterator live_block(int64_t offset) const;
  void join_next(Blocks::iterator block);

  int64_t capacity_, alignment_;
  Blocks blocks_;
  std::set<std::pair<int64_t, int64_t>> free_;  // size, offset
  FitStats stats_;
};

}  // namespace kuafu::device
