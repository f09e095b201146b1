// SPDX-License-Identifier: Apache-2.0
#include "app/worker/run_end.h"

#include <signal.h>
#include <string.h>

#include <new>
#include <string_view>
#include <utility>

#include "app/worker/same_on_ranks.h"
#include "app/worker/stop_signals.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/units.h"
#include "kuafu/checkpoint/folder.h"

namespace kuafu {
namespace {

constexpr const char* kUnsaved = "; nothing is saved (--checkpoint DIR)";

/// What a reader wants to know of the state that was left.
std::string what_is_saved(const RankResult& result, const Plan& plan,
                          const WorkerOptions& options) {
  const int64_t done = result.resumed_from.value_or(0) + static_cast<int64_t>(result.losses.size());
  const std::string after = text("after step ", done, " of ", plan.train.steps);
  if (options.is_of_suite) return after;
  if (options.checkpoint.empty()) return after + kUnsaved;
  if (!result.unsaved.empty()) {
    const auto newest = newest_checkpoint(options.checkpoint);
    if (!newest) return text(after, "; ", options.checkpoint, " holds no state");
    return text(after, "; the newest state is ", *newest, ": go on from it with --resume");
  }
  if (!result.diverged.empty()) {
    if (result.last_good.empty()) return text(after, "; ", options.checkpoint, " holds no state");
    return text(after, "; the last good state, by its finite loss, is ", result.last_good,
                ": go on from it with --resume-with-changes");
  }
  return text(after, "; saved in ", options.checkpoint, ": go on with --resume");
}

template <class T>
bool is_a(const std::exception& e) {
  return dynamic_cast<const T*>(&e) != nullptr;
}

/// SIGUSR2 is what a launcher passes on instead of what it would kill at.
std::string words_of(int number) {
  if (number == SIGUSR2) number = signal_of_launcher();
  return number == 0 ? "asked to stop" : text("signal ", number, " (", ::strsignal(number), ")");
}

}  // namespace

RunEnd failure_of(const std::exception& cause) {
  // LibTorch says it in words of an exception of all kinds.
  const bool has_no_memory =
      is_a<OutOfMemory>(cause) || is_a<std::bad_alloc>(cause) ||
      std::string_view(cause.what()).find("can't allocate memory") != std::string_view::npos;
  if (has_no_memory) return {"out_of_memory", cause.what(), kOutOfMemory};
  if (is_a<Refused>(cause) || is_a<Unavailable>(cause)) {
    return {"refused", what_of(cause), kRefused};
  }
  if (is_a<UnusableCheckpoints>(cause) || is_a<RanksDiffer>(cause))
    return {"failed", what_of(cause), kUsage};
  if (is_a<Diverged>(cause)) return {"diverged", what_of(cause), kDiverged};
  return {"failed", what_of(cause), kFailed};
}

std::string words_of_stop(const WorkerOptions& options) {
  const std::optional<int64_t> steps = steps_beyond(options);
  if (!steps) return "";
  return text("after step ", options.stop_at, " of ", *steps, ", by --stop-at",
              options.checkpoint.empty() ? kUnsaved
                                         : text("; saved in ", options.checkpoint,
                                                ": go on with --resume, without --stop-at"));
}

RunEnd end_of(const RankResult& result, const Plan& plan, const WorkerOptions& options) {
  const std::string saved = what_is_saved(result, plan, options);
  if (!result.diverged.empty())
    return {"diverged", text(result.diverged, "; ended ", saved), kDiverged};
  if (!result.unsaved.empty()) return {"failed", text(result.unsaved, ": ended ", saved), kFailed};
  switch (result.stopped) {
    case Stop::kStopAfter:
      return {"interrupted", text(words_of_stop_after(options), ": ", saved), kInterrupted};
    case Stop::kTimeout:
      return {"timeout", text("the case took longer than ", options.timeout_s, " s: ended ", saved),
              kTimeout};
    case Stop::kSignal: {
      const int number = StopSignals::received();
      const std::string who = number == 0 ? "another rank was asked to stop" : words_of(number);
      return {"interrupted", text(who, ": ended ", saved), kInterrupted};
    }
    case Stop::kNone:
      break;
  }
  const size_t steps = result.losses.size();
  if (steps > 0 && result.skipped.size() == steps) {
    return {"failed",
            text("all ", steps, " steps overflowed in ", to_string(plan.model.dtype),
                 " and updated nothing; lower train.loss_scale",
                 plan.has_dynamic_scale() ? "_start" : "",
                 ", train more steps, or use model.dtype = \"bf16\""),
            kFailed};
  }
  return {"ok", "", kOk};
}

std::string words_of_stop_after(const WorkerOptions& options) {
  return text("--stop-after ", print_seconds(options.stop_after_s));
}

Clocks::Clocks(const WorkerOptions& options, Requests& requests,
               std::function<void()> on_stop_after, std::function<void()> on_timeout) {
  if (options.stop_after_s > 0) {
    stop_after_ = std::make_unique<Watchdog>(options.stop_after_s,
                                             [&requests, on_stop_after = std::move(on_stop_after)] {
                                               requests.stop(Stop::kStopAfter);
                                               on_stop_after();
                                             });
  }
  if (options.timeout_s <= 0) return;
  timeout_ =
      std::make_unique<Watchdog>(options.timeout_s, [&requests] { requests.stop(Stop::kTimeout); });
  last_ = std::make_unique<Watchdog>(1.2 * options.timeout_s + 1, std::move(on_timeout));
}

}  // namespace kuafu
