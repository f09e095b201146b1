// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/best_fit.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "kuafu/base/errors.h"

namespace kuafu::device {

BestFit::BestFit(int64_t bytes, int64_t alignment)
    : capacity_(bytes / alignment * alignment), alignment_(alignment) {
  KUAFU_CHECK(std::has_single_bit(static_cast<uint64_t>(alignment)), "alignment ", alignment);
  KUAFU_CHECK(bytes >= 0, "a region of ", bytes, " bytes");
  if (capacity_ > 0) add_free(blocks_.insert({0, {.bytes = capacity_}}).first);
}

std::optional<int64_t> BestFit::take(int64_t bytes) {
  KUAFU_CHECK(bytes > 0, "a block of ", bytes, " bytes");
  if (bytes > capacity_) return std::nullopt;  // and rounding up cannot overflow
  const int64_t rounded = (bytes + alignment_ - 1) / alignment_ * alignment_;
  const auto fit = free_.lower_bound({rounded, 0});
  if (fit == free_.end()) return std::nullopt;
  const auto block = blocks_.find(fit->second);
  drop_free(block);
  const int64_t offset = block->first, rest = block->second.bytes - rounded;
  block->second = {.bytes = rounded, .asked = bytes};
  if (rest > 0) {
    add_free(blocks_.insert(std::next(block), {offset + rounded, {.bytes = rest}}));
  }
  stats_.live += bytes;
  stats_.held += rounded;
  ++stats_.num_live;
  stats_.peak_live = std::max(stats_.peak_live, stats_.live);
  stats_.peak_held = std::max(stats_.peak_held, stats_.held);
  stats_.high_water = std::max(stats_.high_water, offset + rounded);
  return offset;
}

BestFit::Blocks::const_iterator BestFit::live_block(int64_t offset) const {
  const auto block = blocks_.find(offset);
  KUAFU_CHECK(block != blocks_.end() && block->second.asked > 0, "no live block begins at offset ",
              offset, ": it was freed before, or was never given out");
  return block;
}

std::pair<int64_t, int64_t> BestFit::bytes_of(int64_t offset) const {
  const Block& block = live_block(offset)->second;
  return {block.asked, block.bytes};
}

/// @pre both are free, and in no list.
void BestFit::join_next(Blocks::iterator block) {
  const auto next = std::next(block);
  block->second.bytes += next->second.bytes;
  blocks_.erase(next);
}

ByteRange BestFit::give(int64_t offset) {
  auto block = blocks_.find(live_block(offset)->first);
  stats_.live -= block->second.asked;
  stats_.held -= block->second.bytes;
  --stats_.num_live;
  block->second.asked = 0;
  const auto next = std::next(block);
  if (next != blocks_.end() && next->second.asked == 0) {
    drop_free(next);
    join_next(block);
  }
  if (block != blocks_.begin() && std::prev(block)->second.asked == 0) {
    --block;
    drop_free(block);
    join_next(block);
  }
  add_free(block);
  return {block->first, block->first + block->second.bytes};
}

std::vector<ByteRange> BestFit::free_blocks() const {
  std::vector<ByteRange> all;
  for (const auto& [offset, block] : blocks_) {
    if (block.asked == 0) all.push_back({offset, offset + block.bytes});
  }
  return all;
}

FitStats BestFit::stats() const {
  FitStats now = stats_;
  now.num_free = static_cast<int64_t>(free_.size());
  now.free = capacity_ - now.held;
  now.largest_free = free_.empty() ? 0 : free_.rbegin()->first;
  return now;
}

}  // namespace kuafu::device
