// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/requests.h"

namespace kuafu {

/// While it stands, SIGINT, SIGTERM, SIGHUP and SIGUSR2 ask a run to stop after its step, and SIGUSR1
/// to save after it. A second signal that stops ends the process at once, as if nobody listened; within
/// half a second of the first it is a copy of it, and does nothing. One at a time.
class StopSignals {
 public:
  explicit StopSignals(Requests& requests);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that asked to stop; 0: none has.
  static int received();
};

}  // namespace kuafu
