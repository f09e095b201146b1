// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/parallel/pipeline/analysis.h"

namespace kuafu::pipeline {

/// Where one action of a timetable stands.
struct Position {
  int rank = 0;
  int index = 0;
};

/// What happened when every rank worked down its row.
struct Playback {
  std::vector<std::vector<TimedAction>>
      spans;                    ///< by rank, in row order; short where a rank stood still
  std::vector<Position> order;  ///< actions as they ended, earliest first
  std::vector<Position> stuck;  ///< the action each waiting rank stands before
};

inline bool is_message(Op op) {
  return op == Op::kSendForward || op == Op::kRecvForward || op == Op::kSendBackward ||
         op == Op::kRecvBackward;
}

/// Plays the rows. Messages take no time of a rank; data from another rank arrive `transfer` later.
Playback play(const Timetable& t, const std::vector<int>& rank_of_stage, const OpCosts& costs);

}  // namespace kuafu::pipeline
