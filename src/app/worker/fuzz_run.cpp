// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "app/worker/fuzz.h"
#include "app/worker/matrix.h"
#include "app/worker/options.h"
#include "kuafu/base/suggest.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu::fuzz {
namespace {

using std::chrono::steady_clock;

const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {
      "equal",     "refused", "out_of_memory", "diverged", "not proven",
      "different", "metered", "error",         "crash",    "hang"};
  return all;
}

std::vector<RankResult> run_threads(const Plan& plan, const Registries& registries,
                                    double timeout_s) {
  RunOptions run;
  run.is_certified = true;
  run.make_data = open_dataset;
  std::vector<RankResult> results(static_cast<size_t>(num_ranks(plan)));
  const std::chrono::milliseconds longest(static_cast<int64_t>(500 * timeout_s));
  run_on_threads(static_cast<int>(results.size()),
                 [&](Communicator& world) {
                   results[static_cast<size_t>(world.rank())] =
                       run_rank(plan, registries, world, run);
                 },
                 {.timeout = longest});
  return results;
}

Outcome judged(const Certificate& c) {
  if (c.verdict == "equal") return {Ending::kEqual, "", 0};
  return {c.verdict == "not_run" ? Ending::kNotProven : Ending::kDifferent,
          text("certificate ", c.describe(), "; native ", c.native.describe()), 0};
}

/// True where an update has made the optimizer's state before the last step: one that overflows
/// makes none, which a simulated run cannot know.
bool has_state(const Plan& plan, const RankResult& real) {
  const int64_t before = plan.train.steps - 1;
  const auto skipped = std::count_if(real.skipped.begin(), real.skipped.end(),
                                     [before](int64_t step) { return step < before; });
  return real.skipped.empty() || skipped < before;
}

/// What a simulated rank metered otherwise; empty where nothing.
std::string difference(const Plan& plan, const RankResult& real, const RankResult& simulated) {
  if (simulated.traffic != real.traffic) return "traffic";
  if (simulated.flops != real.flops) return text("FLOPs ", simulated.flops, " for ", real.flops);
  if (simulated.flops_recomputed != real.flops_recomputed) return "recomputed FLOPs";
  if (has_state(plan, real) && simulated.peak_bytes != real.peak_bytes) {
    return text("peak ", simulated.peak_bytes, " for ", real.peak_bytes);
  }
  return {};
}

Outcome metered(const Plan& plan, const Registries& registries,
                const std::vector<RankResult>& real) {
  if (plan.parallel.data.staleness > 0) return {Ending::kEqual, "", 0};  // not simulated, by design
  const Prediction predicted = simulate(plan, registries);
  for (size_t r = 0; r < real.size(); ++r) {
    const std::string what = difference(plan, real[r], predicted.ranks[r]);
    if (!what.empty()) return {Ending::kMetered, text("rank ", r, " simulated: ", what), 0};
  }
  return {Ending::kEqual, "", 0};
}

Outcome run_by_mpi(const Overrides& settings, const Registries& registries, const World& world) {
  matrix::Runner runner(registries, world.folder);
  const matrix::Outcome out = runner.run(settings, "mpi");
  switch (out.status) {
    case matrix::Status::kEqual:
      return {Ending::kEqual, "", out.ranks};
    case matrix::Status::kRefused:
      return {Ending::kRefused, out.why, out.ranks};
    case matrix::Status::kDifferent:
      break;
  }
  const bool is_out = out.why.find("mpirun ended with 4:") == 0;
  const bool is_over = out.why.find("training diverged") != std::string::npos;
  return {is_out    ? Ending::kOutOfMemory
          : is_over ? Ending::kDiverged
                    : Ending::kDifferent,
          out.why, out.ranks};
}

Outcome run_threads_and_simulated(const Plan& plan, const Registries& registries,
                                  const World& world) {
  std::vector<RankResult> real;
  try {
    real = run_threads(plan, registries, world.timeout_s);
  } catch (const OutOfMemory& e) {
    if (plan.memory.device) return {Ending::kOutOfMemory, e.what(), 0};
    throw;
  } catch (const ConfigError& e) {
    const bool is_over = std::strstr(e.what(), "training diverged") != nullptr;
    return {is_over ? Ending::kDiverged : Ending::kError, e.what(), 0};
  }
  const Outcome proven = judged(real[0].certificate);
  if (is_finding(proven.ending)) return proven;
  const Outcome counted = metered(plan, registries, real);
  return counted.ending == Ending::kEqual ? proven : counted;
}

/// Reads what the child writes until it ends or the time is over. False where it is over.
bool read_all(int from, double timeout_s, std::string& out) {
  const auto end = steady_clock::now() + std::chrono::duration<double>(timeout_s);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now()).count();
    pollfd waiting{from, POLLIN, 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) == 0) return false;
    char some[4096];
    const ssize_t n = ::read(from, some, sizeof some);
    if (n == 0) return true;
    if (n > 0) out.append(some, static_cast<size_t>(n));
  }
}

/// Writes "ending ranks\nwhy" and ends the process, without what the parent has at its exit.
[[noreturn]] void answer(int to, const Outcome& outcome) {
  const std::string words = text(to_string(outcome.ending), " ", outcome.ranks, "\n", outcome.why);
  size_t done = 0;
  while (done < words.size()) {
    const ssize_t n = ::write(to, words.data() + done, words.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  _exit(0);
}

Outcome parsed(const std::string& words, int status) {
  const size_t line = words.find('\n'), space = words.find(' ');
  if (WIFSIGNALED(status)) {
    return {Ending::kCrash, text("signal ", WTERMSIG(status), ", ", strsignal(WTERMSIG(status))),
            0};
  }
  if (line == std::string::npos || space > line) {
    return {Ending::kCrash, text("the process ended with ", WEXITSTATUS(status)), 0};
  }
  return {ending_of(words.substr(0, space)), words.substr(line + 1),
          std::stoll(words.substr(space + 1, line - space - 1))};
}

}  // namespace

std::string to_string(Ending ending) { return words().at(static_cast<size_t>(ending)); }

Ending ending_of(const std::string& word) {
  for (size_t i = 0; i < words().size(); ++i) {
    if (words()[i] == word) return static_cast<Ending>(i);
  }
  throw ConfigError(text(in_quotes(word), " is no ending of a plan; allowed: ", join(words())));
}

bool is_finding(Ending ending) { return ending > Ending::kNotProven; }

Outcome run_here(const Overrides& settings, const Registries& registries, const World& world) {
  Outcome out;
  try {
    const Plan plan = placed(settings, registries);
    open_dataset(plan);
    out.ranks = num_ranks(plan);
  } catch (const ConfigError& e) {  // Refused is one too
    const bool has_message = std::strlen(e.what()) > 0;
    return {has_message ? Ending::kRefused : Ending::kError, e.what(), 0};
  } catch (const std::exception& e) {
    return {Ending::kError, text("before the run: ", e.what()), 0};
  }
  try {
    const int64_t ranks = out.ranks;
    out = world.name == "mpi"
              ? run_by_mpi(settings, registries, world)
              : run_threads_and_simulated(placed(settings, registries), registries, world);
    out.ranks = ranks;
  } catch (const std::exception& e) {
    out.ending = Ending::kError;
    out.why = e.what();
  }
  return out;
}

Outcome run_apart(const Overrides& settings, const Registries& registries, const World& world) {
  int ends[2];
  KUAFU_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0, "no pipe: ", std::strerror(errno));
  const pid_t child = ::fork();
  KUAFU_REQUIRE(child >= 0, "no process for a plan: ", std::strerror(errno));
  if (child == 0) {
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(nothing, STDOUT_FILENO);
    ::dup2(nothing, STDERR_FILENO);
    at::set_num_threads(1);  // LibTorch makes its pool anew here, before ranks ask for it together
    answer(ends[1], run_here(settings, registries, world));
  }
  ::close(ends[1]);
  std::string words;
  const bool has_ended = read_all(ends[0], world.timeout_s, words);
  ::close(ends[0]);
  if (!has_ended) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!has_ended) return {Ending::kHang, text("no end in ", world.timeout_s, " s"), 0};
  return parsed(words, status);
}

}  // namespace kuafu::fuzz
