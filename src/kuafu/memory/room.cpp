// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/room.h"

#include <algorithm>

namespace kuafu::memory {

Room::Room(const Known& known, int64_t cap)
    : known_(known),
      cap_(cap),
      bytes_(device_bytes(known.trace, known.on_device)),
      in_use_(known.moment_ahead(0).in_use),
      on_device_(known.on_device.resident) {}

void Room::leave(int64_t chunk) {
  on_device_[static_cast<size_t>(chunk)] = false;
  bytes_ -= known_.bytes_of(chunk);
  choice_.evict.push_back(chunk);
}

/// Lets chunks leave that the next `window` moments do not use, until `needed` bytes more fit.
/// Returns whether they do; where they cannot, all that could leave has left.
bool Room::make(int64_t needed, int64_t window, const Rank& rank) {
  struct Candidate {
    int64_t rank, chunk;
  };
  std::vector<Candidate> candidates;
  for (int64_t c = 0; in_use_ + bytes_ + needed > cap_ && c < known_.trace.num_chunks(); ++c) {
    if (has(c) && known_.on_device.has(c) && distance(c) > window && rank(c) >= 0) {
      candidates.push_back({rank(c), c});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.rank > b.rank; });
  for (const Candidate& candidate : candidates) {
    if (in_use_ + bytes_ + needed <= cap_) break;
    leave(candidate.chunk);
  }
  return in_use_ + bytes_ + needed <= cap_;
}

void Room::make_for_moment(const Rank& rank) {
  int64_t needed = 0;
  const Moment& moment = known_.moment_ahead(0);
  for (const ChunkUse& use : moment.uses) {
    if (!needs_device(use.access)) {
      if (has(use.chunk)) leave(use.chunk);
    } else if (!has(use.chunk)) {
      needed += known_.bytes_of(use.chunk);
    }
  }
  make(needed, 0, rank);
  bytes_ += needed;
  for (const ChunkUse& use : moment.uses) {
    if (needs_device(use.access)) on_device_[static_cast<size_t>(use.chunk)] = true;
  }
}

/// Brings one chunk that is used in `distance` moments; of what is overwritten only the space is
/// reserved, since it comes without a copy. Returns whether it fits until then.
bool Room::bring(const ChunkUse& use, int64_t distance, const Rank& rank) {
  const int64_t bytes = known_.bytes_of(use.chunk);
  const Room before = *this;
  if (!make(bytes, distance, rank)) {
    bytes_ = before.bytes_;
    on_device_ = before.on_device_;
    choice_ = before.choice_;
    return false;
  }
  on_device_[static_cast<size_t>(use.chunk)] = true;
  bytes_ += bytes;
  if (reads(use.access)) choice_.prefetch.push_back(use.chunk);
  return true;
}

void Room::bring_ahead(const Rank& rank, int64_t depth) {
  depth = std::min(depth, known_.trace.num_moments() - 1);
  for (int64_t distance = 1; distance <= depth; ++distance) {
    const Moment& moment = known_.moment_ahead(distance);
    in_use_ = std::max(in_use_, moment.in_use);
    for (const ChunkUse& use : moment.uses) {
      if (!needs_device(use.access)) continue;
      // What changes at home until then is brought when it has, and nothing comes before that: it
      // might take its room.
      if (!has(use.chunk) && known_.distance(use.chunk) > known_.trace.num_moments()) return;
      if (known_.distance(use.chunk) != distance) continue;
      if (!has(use.chunk) && !bring(use, distance, rank)) return;
    }
  }
}

}  // namespace kuafu::memory
