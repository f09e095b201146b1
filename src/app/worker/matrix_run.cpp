// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "app/worker/matrix.h"
#include "app/worker/matrix_resume.h"
#include "app/worker/trial.h"
#include "kuafu/base/kernel_choice.h"
#include "kuafu/base/plugin_error.h"
#include "kuafu/base/reason.h"
#include "kuafu/base/worlds.h"
#include "kuafu/record/files.h"
#include "kuafu/record/json_text.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu::matrix {
namespace {

constexpr const char* kDoneFile = "done.jsonl";

CellOutcome judged(const Certificate& c) {
  CellOutcome out;
  out.gradient_error = c.gradient.error;
  out.tolerance = c.gradient.bound;
  out.ratio = c.ratio();
  out.native_ratio = c.native.ratio();
  const std::string of_run = c.native.why_far();
  out.why_far = c.why_far().empty() || of_run == kUnexplained ? of_run : c.why_far();
  out.status = c.verdict == "equal" ? Status::kEqual : Status::kDifferent;
  if (c.verdict == "equal") {
    if (!c.native.unseen.empty()) out.why = "blind to " + c.native.unseen;
  } else {
    out.why = text("certificate ", c.describe(), "; native ", c.native.describe());
  }
  return out;
}

/// The program that runs, as far as another build differs from it.
std::string program() {
  struct stat file {};
  ::stat("/proc/self/exe", &file);
  return text(file.st_size, " ", file.st_mtim.tv_sec, ".", file.st_mtim.tv_nsec, " ",
              to_string(kernel_choice()));
}

/// Throws ConfigError where what is chosen beside a plan forbids that it is resumed.
void check_resumption(const Circumstances& how) {
  KUAFU_REQUIRE(how.resumed == kNeverResumed || how.world != worlds::kSimulated,
                "--checkpoint: the simulated world computes no numbers, ",
                "so there is nothing to save");
}

/// What a plan with tiers may not do, equal or not: leave everything where it was.
CellOutcome with_moves(CellOutcome out, const Plan& plan, const std::vector<RankResult>& ranks) {
  const auto moved = [](const RankResult& r) { return r.moves.step_to_device > 0; };
  if (!plan.memory.has_tiers() || std::any_of(ranks.begin(), ranks.end(), moved)) return out;
  out.status = Status::kDifferent;
  out.why = text("nothing came to a device in the last step; ", out.why);
  return out;
}

Status status_of(const std::string& word) {
  for (const Status status : {Status::kEqual, Status::kRefused}) {
    if (word == to_string(status)) return status;
  }
  return Status::kDifferent;
}

}  // namespace

std::string words_of(const CellOutcome& o) {
  return json_line({to_string(o.status), o.why, o.ranks, o.gradient_error, o.tolerance, o.ratio,
                    o.native_ratio, o.why_far});
}

CellOutcome outcome_of(const std::string& words) {
  const Json j = Json::parse(words);
  const auto number = [&](size_t i) { return j.at(i).is_number() ? j.at(i).get<double>() : 0; };
  return {status_of(j.at(0)), j.at(1),   j.at(2),   number(3),
          number(4),          number(5), number(6), j.at(7)};
}

MatrixRunner::MatrixRunner(const Registries& registries, std::string folder,
                           std::vector<std::string> plugins)
    : registries_(registries),
      folder_(std::move(folder)),
      plugins_(std::move(plugins)),
      ranks_({4, {}, plugins_}) {}

void MatrixRunner::go_on() {
  std::ifstream file(folder_ + "/" + kDoneFile);
  file.seekg(num_read_);
  for (std::string line; std::getline(file, line) && !file.eof();) {  // a whole line
    num_read_ += static_cast<int64_t>(line.size()) + 1;
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || row.value("program", "") != program()) continue;  // cut off by a kill
    done_[row.at("case")] = outcome_of(row.at("outcome"));
  }
}

CellOutcome MatrixRunner::run(const Overrides& settings, const Circumstances& how) {
  Plan plan;
  try {
    with_plugins(plugins_, [&] {
      plan = placed(settings, registries_);
      check_resumption(how);
    });
  } catch (const ConfigError& e) {  // Refused is one too
    return {Status::kRefused, what_of(e), 0};
  } catch (const PluginError& e) {
    return {Status::kDifferent, text("failed: ", what_of(e)), 0};
  }
  const bool is_resumed = how.resumed != kNeverResumed;
  const std::string key = plan_hash(plan) + how.world + (is_resumed ? " " + how.resumed : "");
  go_on();
  const auto found = done_.find(key);
  if (found != done_.end()) return found->second;
  CellOutcome out = judge(settings, plan, how);
  out.ranks = num_ranks(plan);
  keep(key, out);
  return out;
}

CellOutcome MatrixRunner::judge(const Overrides& settings, const Plan& plan,
                                const Circumstances& how) {
  try {
    return with_plugins(plugins_, [&] { return run_plan(settings, plan, how); });
  } catch (const SaveFailed& e) {
    throw Unwritten(e.what());
  } catch (const Refused& e) {  // by the world
    return {Status::kRefused, what_of(e), 0};
  } catch (const std::exception& e) {
    return {Status::kDifferent, text("failed: ", what_of(e)), 0};
  }
}

void MatrixRunner::keep(const std::string& key, const CellOutcome& outcome) {
  done_[key] = outcome;
  // One write: other processes add lines to the same file.
  const std::string path = folder_ + "/" + kDoneFile;
  const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.is_open()) throw_unwritten(path);
  write_all(
      file,
      json_line({{"program", program()}, {"case", key}, {"outcome", words_of(outcome)}}) + "\n",
      path);
}

CellOutcome MatrixRunner::run_plan(const Overrides& settings, const Plan& plan,
                                   const Circumstances& how) {
  if (how.world == worlds::kSimulated) return metered_alike(plan);
  if (how.resumed == kNeverResumed) {
    const std::vector<RankResult> ranks = run_ranks(plan, how.world, {});
    return with_moves(judged(ranks[0].certificate), plan, ranks);
  }
  const bool is_same = how.resumed == kResumedBySame;
  const Plan saver =
      is_same ? plan : placed(other_placement(settings, num_ranks(plan)), registries_);
  const ResumedRun resumed = run_resumed(saver, plan, text(folder_, "/resumed-", ::getpid()),
                                         [&](const Plan& which, const TrialOptions& options) {
                                           return run_ranks(which, how.world, options);
                                         });
  CellOutcome out = judged(resumed.certificate);
  if (resumed.difference.empty()) return out;
  out.status = Status::kDifferent;
  out.why = text(resumed.difference, out.why.empty() ? "" : "; ", out.why);
  return out;
}

CellOutcome MatrixRunner::metered_alike(const Plan& plan) const {
  const std::vector<RankResult> real = run_threads(plan, registries_, {.is_certified = false});
  const std::string what = difference(plan, registries_, real, Transport::kThreads);
  return with_moves({what.empty() ? Status::kEqual : Status::kDifferent, what, 0}, plan, real);
}

std::vector<RankResult> MatrixRunner::run_ranks(const Plan& plan, const std::string& world,
                                                const TrialOptions& options) {
  return world == worlds::kMpi ? run_by_mpi(plan, options)
                               : run_threads(plan, registries_, options);
}

std::vector<RankResult> MatrixRunner::run_by_mpi(const Plan& plan, const TrialOptions& options) {
  try {
    ranks_.prepare(num_ranks(plan));
    return ranks_.run(plan, options);
  } catch (...) {
    ranks_.stop();
    throw;
  }
}

}  // namespace kuafu::matrix
