// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kuafu/memory/policy.h"

namespace kuafu::memory {

/// Which chunk leaves first: the largest rank, of equal ones the first chunk; below 0 it stays.
using Rank = std::function<int64_t(int64_t chunk)>;

/// What most policies share: room is made by ranks, for the moment and then for those ahead.
///
///     moment        m        m + 1      m + 2    (prefetch = 2)
///     needs         a        b          c        and what is in use
///     leaves        not a    not a, b   not a, b, c: by rank, until all of m .. then fits
class Room {
 public:
  /// `known` must live longer. `cap`: bytes that chunks and what is in use should not pass.
  Room(const Known& known, int64_t cap);

  /// Takes a chunk off the device.
  void leave(int64_t chunk);
  /// Makes room for what the moment uses: below the cap if it can, below the budget for certain where
  /// no rank keeps what it must not.
  void make_for_moment(const Rank& rank);
  /// Brings what the next `depth` moments read, the nearest first, and ends at what does not fit
  /// from now until its use.
  void bring_ahead(const Rank& rank, int64_t depth);

  int64_t distance(int64_t chunk) const { return known_.distance(chunk); }
  bool has(int64_t chunk) const { return on_device_[static_cast<size_t>(chunk)]; }
  const Choice& choice() const { return choice_; }

 private:
  bool make(int64_t needed, int64_t window, const Rank& rank);
  bool bring(const ChunkUse& use, int64_t distance, const Rank& rank);

  const Known& known_;
  int64_t cap_, bytes_, in_use_;  ///< of chunks, those reserved too; the most up to a moment ahead
  std::vector<bool> on_device_;   ///< on the device, or space for it is reserved
  Choice choice_;
};

}  // namespace kuafu::memory
