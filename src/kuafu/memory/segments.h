// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/memory/policy.h"

namespace kuafu::memory {

// Picture
// -------
// A chunk c of 4 bytes in a step of 6 moments, used at 0, 2 and 4; U updates, r reads.
//
//     moment      0   1   2   3   4   5 | 0
//     c           U . . . r . . . r . . . U         segments 0-2, 2-4, 4-0
//                 \__ 0 __/\__ 1 __/\__ 2 __/       inner moments 1; 3; 5
//                 \____________________________/    one stretch: from a write to the next write
//
// A segment lies between two uses of a chunk that follow each other. The chunk is kept over it
// (d = 0): it takes its bytes of every inner moment. Or it is not (d = 1): it is loaded before the
// use that ends the segment, if that reads. In a stretch the chunk is written back before it first
// leaves (w = 1), once, since it is clean from then until it is written again.
//
// Math
// ----
//     minimise    sum over segments  load d  +  sum over stretches  bytes w
//     where       sum over segments with t inside  bytes (1 - d)  <=  budget - in use(t) - used(t)
//                 w >= d      for each segment of the stretch
//                 d, w in {0, 1}; the relaxation: in [0, 1]
//
// load = bytes, or 0 where the ending use overwrites; such a segment has d = 1, costs nothing and
// belongs to no stretch. A segment without inner moments takes no room of others: d = 0. A chunk
// that is never written has no stretch; one that is never used is at home for ever.
//
// A chunk that changes at home is off the device then, so that no segment lies over such a use: it is
// loaded before the use behind it, if that reads, and what was written before has been written back,
// whatever is kept. These bytes are added to every choice.
//
// This is the least number of bytes that cross between device and homes in a step, over all lists
// of moves under `Rules` that end the step with what they began it with, in which space is free at
// once and copies take no time. For a list gives d = 1 where the chunk is ever off the device in a
// segment, and then has loaded it there and written it back in its stretch, so it pays at least
// this; and the rooms hold, as it kept the others. In return d and w give the list that drops each
// chunk behind the use that begins a segment with d = 1 and brings it before the one that ends it.
//
// Repeated steps may be cheaper than k times this: the least of k steps is that of the trace
// repeated k times, and the relaxation bounds them all, for the mean of k steps solves it.
//
// Cost
// ----
// At most a d for each use, a w for each write, a row for each moment and for each segment of a
// stretch. Already without writes and with one moment it is a knapsack, so NP-hard.

/// Between two uses of a chunk that follow each other: from use `index` of it to the next.
struct Segment {
  int64_t chunk = 0, index = 0;
  int64_t from = 0, to = 0;  ///< moments of the uses; to <= from where it lies over the step's end
  int64_t load = 0;          ///< bytes that not keeping it costs at its end
  int64_t stretch = -1;      ///< from a write to the next one; -1: nothing to write back
  bool operator==(const Segment&) const = default;
};

/// The program of a trace: what may be kept, and the room there is for it.
struct Segments {
  std::vector<Segment> segments = {};   ///< with inner moments and a cost
  std::vector<int64_t> stretches = {};  ///< bytes of a write back of each
  std::vector<int64_t> room = {};       ///< by moment: bytes left for what is kept
  int64_t fixed = 0;                    ///< bytes that every choice costs: of changes at home
  bool operator==(const Segments&) const = default;
};

/// @pre the trace is checked and fits.
Segments segments_of(const UseTrace& trace, int64_t budget);

/// Whether a moment is inside of a segment: after its first use and before its last.
bool is_inside(const Segment& segment, int64_t moment);

/// Bytes that a choice of segments costs. Throws ConfigError where it does not fit a moment.
int64_t cost_of(const UseTrace& trace, const Segments& all, const std::vector<bool>& is_kept);

/// The policy that keeps these segments and no others, whatever comes; with any prefetch.
Policy keeping(const UseTrace& trace, const Segments& all, const std::vector<bool>& is_kept);

}  // namespace kuafu::memory
