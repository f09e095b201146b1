// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/segments.h"

#include <algorithm>
#include <set>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/memory/room.h"

namespace kuafu::memory {
namespace {

/// Whether what is written at use `index` of a chunk changes at home before it is written again.
bool goes_home(const std::vector<UsesByChunk::At>& uses, size_t index) {
  for (size_t i = 1; i < uses.size(); ++i) {
    const Access access = uses[(index + i) % uses.size()].access;
    if (!needs_device(access)) return true;
    if (writes(access)) return false;
  }
  return false;
}

/// Where it is known whether a chunk is dirty: its first write, or change at home; else 0.
size_t first_change(const std::vector<UsesByChunk::At>& uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].access != Access::kRead) return i;
  }
  return 0;
}

/// The segments of one chunk, with stretches that are opened when a segment first needs one.
void add_segments(const UseTrace& trace, const UsesByChunk& uses, int64_t chunk, Segments& out) {
  const std::vector<UsesByChunk::At>& all = uses.of(chunk);
  const int64_t bytes = trace.chunks[static_cast<size_t>(chunk)].bytes;
  const size_t first = first_change(all);
  bool has_stretch = false;
  int64_t stretch = -1;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t index = (first + i) % all.size();
    const UsesByChunk::At from = all[index], to = all[(index + 1) % all.size()];
    if (writes(from.access)) {
      stretch = -1;
      has_stretch = !goes_home(all, index);
      if (!has_stretch) out.fixed += bytes;  // written back whatever is kept
    }
    if (!needs_device(from.access)) {
      has_stretch = false;
      if (reads(to.access)) out.fixed += bytes;  // nothing can be kept over a change at home
      continue;
    }
    const bool has_inside = (from.moment + 1) % trace.num_moments() != to.moment;
    if (!has_inside || !reads(to.access)) continue;
    if (has_stretch && stretch < 0) {
      stretch = static_cast<int64_t>(out.stretches.size());
      out.stretches.push_back(bytes);
    }
    out.segments.push_back({chunk, static_cast<int64_t>(index), from.moment, to.moment, bytes,
                            has_stretch ? stretch : -1});
  }
}

}  // namespace

Segments segments_of(const UseTrace& trace, int64_t budget) {
  Segments out;
  const UsesByChunk uses(trace);
  for (int64_t c = 0; c < trace.num_chunks(); ++c) add_segments(trace, uses, c, out);
  for (int64_t t = 0; t < trace.num_moments(); ++t) {
    out.room.push_back(budget - trace.moments[static_cast<size_t>(t)].in_use -
                       used_bytes(trace, t));
  }
  return out;
}

bool is_inside(const Segment& segment, int64_t moment) {
  if (segment.from < segment.to) return segment.from < moment && moment < segment.to;
  return moment > segment.from || moment < segment.to;
}

int64_t cost_of(const UseTrace& trace, const Segments& all, const std::vector<bool>& is_kept) {
  std::vector<int64_t> room = all.room;
  std::vector<bool> is_written(all.stretches.size());
  int64_t cost = all.fixed;
  for (size_t i = 0; i < all.segments.size(); ++i) {
    const Segment& segment = all.segments[i];
    for (size_t t = 0; is_kept[i] && t < room.size(); ++t) {
      if (!is_inside(segment, static_cast<int64_t>(t))) continue;
      room[t] -= trace.chunks[static_cast<size_t>(segment.chunk)].bytes;
      KUAFU_REQUIRE(room[t] >= 0, "what is kept over moment ", t, " is ", -room[t],
                    " bytes too much");
    }
    if (is_kept[i]) continue;
    cost += segment.load;
    if (segment.stretch >= 0) is_written[static_cast<size_t>(segment.stretch)] = true;
  }
  for (size_t i = 0; i < is_written.size(); ++i) {
    if (is_written[i]) cost += all.stretches[i];
  }
  return cost;
}

Policy keeping(const UseTrace& trace, const Segments& all, const std::vector<bool>& is_kept) {
  // (chunk, moment of the use that begins the segment); what costs nothing is not among them.
  std::set<std::pair<int64_t, int64_t>> kept;
  for (size_t i = 0; i < all.segments.size(); ++i) {
    if (is_kept[i]) kept.emplace(all.segments[i].chunk, all.segments[i].from);
  }
  const int64_t moments = trace.num_moments();
  return [kept, moments](const Known& known) {
    Room room(known, known.budget);
    for (int64_t c = 0; c < known.trace.num_chunks(); ++c) {
      const int64_t last = (known.moment + moments - 1) % moments;
      // Once, behind the use: what is loaded ahead later stays.
      const bool is_begun = known.uses.age(c, known.moment) == 1 && room.distance(c) > 0;
      if (room.has(c) && is_begun && kept.count({c, last}) == 0) room.leave(c);
    }
    const auto stays = [](int64_t) { return int64_t{-1}; };
    room.make_for_moment(stays);
    room.bring_ahead(stays, known.knobs.prefetch);
    return room.choice();
  };
}

}  // namespace kuafu::memory
