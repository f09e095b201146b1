// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/parallel/pipeline/timetable.h"

namespace kuafu::pipeline {

/// Told what a rank did and when. Computations and sends are reported as they end; a receive when
/// it is waited for, with the time the rank stood still for it. What lies between is idle.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  /// Seconds of one steady clock of this machine, the same for all ranks on it.
  virtual void note(int rank, const Action& action, double start_s, double end_s) = 0;
};

}  // namespace kuafu::pipeline
