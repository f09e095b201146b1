// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kuafu/memory/room.h"

namespace kuafu::memory {
namespace {

/// Everything leaves that no moment up to the depth of the prefetch uses, but what `stays`.
template <class Stays>
Choice keep_few(const Known& known, const Stays& stays) {
  Room room(known, known.budget);
  const auto rank = [&](int64_t c) { return stays(c) ? -1 : room.distance(c); };
  for (int64_t c = 0; c < known.trace.num_chunks(); ++c) {
    if (room.has(c) && rank(c) > known.knobs.prefetch) room.leave(c);
  }
  room.make_for_moment(rank);
  room.bring_ahead(rank, known.knobs.prefetch);
  return room.choice();
}

/// Everything stays until its room is needed; the largest rank leaves first.
Choice keep_many(const Known& known, int64_t cap, int64_t depth, const Rank& rank) {
  Room room(known, cap);
  room.make_for_moment(rank);
  room.bring_ahead(rank, depth);
  return room.choice();
}

/// The chunks that `share` of all bytes holds, the first first; what would leave no room for some
/// moment beside those before it is left out.
std::vector<bool> fixed_share(const UseTrace& trace, int64_t budget, double share) {
  std::vector<int64_t> room;
  for (int64_t t = 0; t < trace.num_moments(); ++t) {
    room.push_back(budget - trace.moments[static_cast<size_t>(t)].in_use - used_bytes(trace, t));
  }
  double left = 0;
  for (const Chunk& chunk : trace.chunks) left += share * static_cast<double>(chunk.bytes);
  std::vector<bool> fixed(trace.chunks.size());
  for (int64_t c = 0; c < trace.num_chunks(); ++c) {
    const int64_t bytes = trace.chunks[static_cast<size_t>(c)].bytes;
    std::vector<int64_t> after = room;
    for (size_t t = 0; t < room.size(); ++t) {
      if (use_of(trace.moments[t], c) == nullptr) after[t] -= bytes;
    }
    if (static_cast<double>(bytes) > left || *std::min_element(after.begin(), after.end()) < 0) {
      continue;
    }
    fixed[static_cast<size_t>(c)] = true;
    left -= static_cast<double>(bytes);
    room = after;
  }
  return fixed;
}

}  // namespace

Choice host_policy(const Known& known) {
  return keep_few(known, [](int64_t) { return false; });
}

Choice static_policy(const Known& known) {
  const auto fixed = fixed_share(known.trace, known.budget, known.knobs.static_share);
  return keep_few(known, [&](int64_t c) { return fixed[static_cast<size_t>(c)]; });
}

Choice lru_policy(const Known& known) {
  return keep_many(known, known.budget, known.knobs.prefetch,
                   [&](int64_t c) { return known.uses.age(c, known.moment); });
}

Choice belady_policy(const Known& known) {
  return keep_many(known, known.budget, known.knobs.prefetch,
                   [&](int64_t c) { return known.distance(c); });
}

Choice auto_policy(const Known& known) {
  const int64_t moments = known.trace.num_moments();
  const bool is_cyclic = known.knobs.horizon == Horizon::kCycle;
  const auto cap = static_cast<int64_t>(
      std::floor(static_cast<double>(known.budget) * (1 - known.knobs.margin)));
  const int64_t depth =
      is_cyclic ? known.knobs.prefetch : std::min(known.knobs.prefetch, moments - 1 - known.moment);
  return keep_many(known, cap, depth, [&](int64_t c) {
    const NextUse next = known.uses.next(c, known.moment);
    return next.wraps && !is_cyclic ? moments : known.distance(c);
  });
}

}  // namespace kuafu::memory
