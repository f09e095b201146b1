// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "kuafu/base/registry.h"
#include "kuafu/parallel/pipeline/timetable.h"

namespace kuafu::pipeline {

// Generators. F forward, B backward, of equal work a stage; p ranks, m micro-batches, v chunks.
// Bubble: idle time / working time of a rank, with a backward twice a forward (both gradients).

/// All forwards, then all backwards. Bubble (p-1)/m, m activations. [Huang et al., 1811.06965]
Timetable gpipe(PipeShape s);
/// Fill, alternate one forward and one backward, drain. Bubble (p-1)/m; at most p - r activations
/// alive on rank r. [Narayanan et al., 2006.09503; 2104.04473, section 2.2]
Timetable one_f_one_b(PipeShape s);
/// v stages a rank, stage i on rank i mod p. Bubble (p-1)/(v m), at most v p + p - 1 - 2r stage
/// inputs alive on rank r. Any m: where it is no multiple of p, the first group holds the remainder
/// g, and a step takes at most 2 (v-1)(p-g) forwards longer; for m < p it takes v p + m - 1
/// forwards and as many backwards. [Narayanan et al., 2104.04473, section 2.3, for multiples of p]
Timetable interleaved(PipeShape s);
/// 1F1B with the weight gradients split off and used to fill: bubble (p-1)/(3m) for F = I = W and
/// m >= p; p activations on every rank. [Qi et al., 2401.10241, section 2.2]
Timetable zero_bubble_h1(PipeShape s);
/// Two stages a rank in the shape of a V: stage i and 2p-1-i on rank i, so that the loss meets its
/// own rank. Bubble at most (p-1)/(4m) for F = I = W and m >= p; the activations of 1F1B.
/// [2401.10241, section 6]
Timetable zbv(PipeShape s);

/// A schedule as the registry knows it.
struct Schedule {
  std::function<Timetable(PipeShape)> make;
  int chunks = 0;  ///< stages a rank must hold; 0 = any number
  /// Most stage inputs that `rank` keeps at once, as the schedule declares it; null: it does not.
  std::function<int(PipeShape, int rank)> most_alive = {};
};

/// "gpipe", "1f1b", "interleaved", "zero_bubble", "zbv".
void register_schedules(Registry<Schedule>& schedules);
/// The same, as a registry of their own.
const Registry<Schedule>& builtin_schedules();

}  // namespace kuafu::pipeline
