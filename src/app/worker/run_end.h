// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "app/worker/options.h"
#include "app/worker/watchdog.h"
#include "kuafu/engine/run.h"

namespace kuafu {

/// How a run ended that made steps: whole, or earlier and why.
struct RunEnd {
  std::string status, reason;  ///< of the document
  int code = kOk;
};
/// How a run ends that was thrown out of: status and exit code. Memory that the system refuses is
/// `out_of_memory` too, without the bytes of a budget.
RunEnd failure_of(const std::exception& cause);

/// Of a run that --stop-at ends before the plan does: where, what is saved, how to go on. Else empty.
std::string words_of_stop(const WorkerOptions& options);

RunEnd end_of(const RankResult& result, const Plan& plan, const WorkerOptions& options);

/// What the reason of a run begins with that `--stop-after` ended.
std::string words_of_stop_after(const WorkerOptions& options);

/// `--stop-after` and `--timeout` ask a run to stop, and `--stop-after` then calls `on_stop_after`;
/// where the time-out finds no step's end within 1 s and a fifth of itself, `on_timeout` is called,
/// which does not return.
class Clocks {
 public:
  Clocks(const WorkerOptions& options, Requests& requests, std::function<void()> on_stop_after,
         std::function<void()> on_timeout);

 private:
  std::unique_ptr<Watchdog> stop_after_, timeout_, last_;
};

}  // namespace kuafu
