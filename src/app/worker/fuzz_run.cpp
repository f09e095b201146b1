// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "app/worker/fuzz.h"
#include "app/worker/messages.h"
#include "app/worker/options.h"
#include "app/worker/trial.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/json_text.h"
#include "kuafu/simulate/simulate.h"
#include "kuafu/states/check_disk.h"

namespace kuafu::fuzz {
namespace {

constexpr size_t kLongestReason = 4000;  ///< bytes

PlanOutcome judged(const Certificate& c) {
  if (c.verdict == "equal") {
    return {PlanEnding::kEqual, c.native.unseen, c.native.unseen.empty() ? "" : kBlind, 0};
  }
  if (c.verdict == "not_run") return outcome_of_not_run(c.reason);
  return {PlanEnding::kDifferent,
          text("certificate ", c.describe(), "; native ", c.native.describe()), "", 0};
}

/// The key that a refusal names first; "" where it names none.
std::string key_in(const std::string& message) {
  std::string first;
  size_t at = std::string::npos;
  const auto look_for = [&](const std::string& key) {
    const size_t found = message.find(key);
    if (found > at || (found == at && key.size() <= first.size())) return;
    if (found == std::string::npos) return;
    first = key;
    at = found;
  };
  for (const plan::Key& key : plan::keys()) look_for(key.name);
  look_for("parallel.layers");
  return first;
}

PlanOutcome refused(const std::string& message) {
  const std::string key = key_in(message);
  if (key.empty()) return {PlanEnding::kError, "refused without naming a key: " + message, "", 0};
  return {PlanEnding::kRefused, message, key, 0};
}

Transport transport_of(RealWorld world) {
  return world == RealWorld::kMpi ? Transport::kMpi : Transport::kThreads;
}

/// A plan that is over its budget must be over it simulated too.
PlanOutcome out_of_memory(const Plan& plan, const Registries& registries, RealWorld world,
                          const std::string& why) {
  const PlanOutcome out{PlanEnding::kOutOfMemory, why, "", 0};
  if (!can_simulate(plan)) return out;
  try {
    simulate(plan, registries, transport_of(world));
  } catch (const OutOfMemory&) {
    return out;
  }
  return {PlanEnding::kMetered,
          "simulated, the plan keeps to its budget, and not on its ranks: " + why, "", 0};
}

PlanOutcome run_placed(const Plan& plan, const Registries& registries, const MpiRanks* ranks,
                       RealWorld world, const Trier::Options& options) {
  std::vector<RankResult> real;
  try {
    const std::chrono::milliseconds longest(static_cast<int64_t>(500 * options.timeout_s));
    // Of MPI ranks the limit of the plan's process comes first.
    real = ranks != nullptr ? ranks->run(plan, {.timeout = 4 * longest})
                            : run_threads(plan, registries, {.timeout = longest});
  } catch (const OutOfMemory& e) {
    if (!plan.memory.device && !plan.memory.host && !plan.memory.disk) throw;
    return out_of_memory(plan, registries, world, what_of(e));
  } catch (const RankDied& e) {
    return {PlanEnding::kCrash, what_of(e), "", 0};
  } catch (const ConfigError& e) {
    const bool is_over = std::strstr(e.what(), "training diverged") != nullptr;
    return {is_over ? PlanEnding::kDiverged : PlanEnding::kError, what_of(e),
            is_over ? kNoNumber : "", 0};
  }
  const PlanOutcome proven = judged(real[0].certificate);
  if (is_finding(proven.ending)) return proven;
  if (!real[0].diverged.empty()) return {PlanEnding::kDiverged, real[0].diverged, kNoNumber, 0};
  if (!can_simulate(plan)) return proven;
  const std::string what = difference(plan, registries, real, transport_of(world));
  return what.empty() ? proven : PlanOutcome{PlanEnding::kMetered, what, "", 0};
}

/// In this process, but for MPI ranks.
PlanOutcome run_here(const Overrides& settings, const Registries& registries, const MpiRanks* ranks,
                     RealWorld world, const Trier::Options& options) {
  Plan plan;
  try {
    plan = placed(settings, registries, options.plugins);
    data_opener()(plan);
    if (plan.memory.has_disk()) check_disk(plan.memory.disk_path);
  } catch (const ConfigError& e) {  // Refused is one too
    return refused(what_of(e));
  } catch (const std::exception& e) {
    return {PlanEnding::kError, text("before the run: ", what_of(e)), "", 0};
  }
  PlanOutcome out;
  try {
    out = with_plugins(options.plugins,
                       [&] { return run_placed(plan, registries, ranks, world, options); });
  } catch (const std::exception& e) {
    out = {PlanEnding::kError, what_of(e), "", 0};
  }
  out.ranks = num_ranks(plan);
  return out;
}

std::string words_of(const PlanOutcome& o) {
  return json_line({to_string(o.ending), o.why.substr(0, kLongestReason), o.cause, o.ranks});
}

PlanOutcome outcome_of(const std::string& words) {
  const Json j = Json::parse(words);
  return {ending_of(j.at(0)), j.at(1), j.at(2), j.at(3)};
}

/// True where MPI ranks have come to the end of the plan, all of them.
bool is_over(PlanEnding ending) {
  return ending != PlanEnding::kOutOfMemory && ending != PlanEnding::kDiverged &&
         ending < PlanEnding::kError;
}

}  // namespace

Trier::Trier(const Registries& registries, Options options)
    : registries_(registries),
      options_(std::move(options)),
      own_({options_.most_ranks, MpiCollectives::kOwn, options_.plugins}),
      native_({options_.most_ranks, MpiCollectives::kNative, options_.plugins}) {}

PlanOutcome Trier::run(const Overrides& settings, RealWorld world) {
  return world == RealWorld::kThreads ? run_apart(settings, world, nullptr)
                                      : run_by_mpi(settings, world);
}

PlanOutcome Trier::run_by_mpi(const Overrides& settings, RealWorld world) {
  MpiRanks& ranks = world == RealWorld::kMpi ? own_ : native_;
  const auto try_once = [&] {
    ranks.prepare();
    const PlanOutcome outcome = run_apart(settings, world, &ranks);
    if (!is_over(outcome.ending)) ranks.stop();
    return outcome;
  };
  PlanOutcome first = try_once();
  if (!is_finding(first.ending)) return first;
  ranks.stop();
  PlanOutcome alone = try_once();
  if (alone.ending == first.ending) return alone;
  first.why = text("only on ranks that ran other plans before (alone: ", to_string(alone.ending),
                   "): ", first.why);
  return first;
}

PlanOutcome Trier::run_apart(const Overrides& settings, RealWorld world,
                             const MpiRanks* ranks) const {
  auto [ours, theirs] = make_line();
  const pid_t owner = ::getpid(), child = ::fork();
  KUAFU_REQUIRE(child >= 0, "no process for a plan: ", std::strerror(errno));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != owner) ::_exit(0);
    ours.close();
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(nothing, STDOUT_FILENO);
    ::dup2(nothing, STDERR_FILENO);
    send(theirs, words_of(run_here(settings, registries_, ranks, world, options_)));
    ::_exit(0);  // without what the parent has at its exit
  }
  theirs.close();
  pollfd answer{ours.descriptor(), POLLIN, 0};
  const bool is_late = ::poll(&answer, 1, static_cast<int>(1000 * options_.timeout_s)) == 0;
  if (is_late) ::kill(child, SIGKILL);
  const auto words = receive(ours);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (is_late) return {PlanEnding::kHang, text("no end in ", options_.timeout_s, " s"), "", 0};
  if (!words) return {PlanEnding::kCrash, "the process " + ended(status), "", 0};
  return outcome_of(*words);
}

}  // namespace kuafu::fuzz
