// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/memory/play.h"

namespace kuafu::memory {

/// Bytes a second between the device and each home of chunks, in each direction.
struct LinkRates {
  double host = 0;
  double disk = 0;  ///< asked for where a chunk is at home there
};

/// From when to when something is on its way, in seconds since the first moment could begin.
struct Interval {
  double start = 0, end = 0;
  bool operator==(const Interval&) const = default;
};

/// When what was played happens, once that repeats too.
struct MoveTimes {
  double seconds = 0;                    ///< of all steps
  double computing = 0;                  ///< of these
  double loading = 0, writing_back = 0;  ///< busy time of the two queues
  std::vector<Interval> moves = {};      ///< of a load and a write back the copy
  std::vector<Interval> moments = {};    ///< that compute
  double stall() const { return seconds - computing; }
};

/// Times moves with two queues of copies, one a direction, that work beside the computing.
///
///     given out   t                      t + 1
///     computing   ######## t ########..wait..#### t + 1 ####
///     to device   [load for t + 1][load for t + 2 ]
///     to home     [write back          ]
///
/// - Before moment t computes its moves are given out, in order, and each queue works down its own.
/// - A write back begins when the chunk is on the device. Its space is free when it ends, that of a
///   clean chunk at once.
/// - A load begins when there is space for it, beside all that is given out before it, and when the
///   chunk's last write back has ended.
/// - A moment begins when the one before has ended, its chunks are on the device, what it changes at
///   home has come home, and there is space for what it has in use.
/// So bytes on the device never pass the budget, at any time, and stall is at least the busy time of
/// each queue less the computing.
MoveTimes time_moves(const UseTrace& trace, int64_t budget, const Played& played,
                     const LinkRates& rates);

}  // namespace kuafu::memory
