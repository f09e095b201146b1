// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>
#include <cstdlib>

#include <algorithm>
#include <iostream>
#include <set>
#include <sstream>

#include "app/kuafu/options.h"
#include "app/kuafu/programs.h"
#include "app/kuafu/report_facts.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/torch_folder.h"
#include "kuafu/base/units.h"
#include "kuafu/dataset/corpus.h"
#include "kuafu/experiment/filter.h"
#include "kuafu/experiment/finality.h"
#include "kuafu/experiment/ratios.h"
#include "kuafu/experiment/references.h"
#include "kuafu/experiment/rounds.h"
#include "kuafu/experiment/runner.h"
#include "kuafu/experiment/summary.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/files.h"
#include "kuafu/record/hdf5.h"
#include "kuafu/record/launch_folders.h"

namespace kuafu {
namespace {

volatile sig_atomic_t interrupted = 0;  // written by the signal handler only

void note_signal(int) { interrupted = 1; }

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = note_signal;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // a reader that is gone (`| head`) ends no sweep
}

std::string worker_of(const SuiteCall& call) {
  return call.worker.empty() ? worker_path() : call.worker;
}

void require_readable(const char* asked, const std::string& plugin) {
  KUAFU_REQUIRE(::access(plugin.c_str(), R_OK) == 0, asked, " ", plugin,
                ": cannot be read; give the path of a shared object");
}

/// What the worker finds in plug-ins: the front loads none.
PluginNames names_of_plugins(const std::string& worker, const std::vector<std::string>& plugins) {
  std::vector<std::string> words = {worker, "list", "--names"};
  for (const std::string& plugin : plugins) {
    require_readable("suite.plugins:", plugin);
    words.insert(words.end(), {"--plugin", plugin});
  }
  PluginNames names;
  std::istringstream lines(output_of(words));
  for (std::string kind, name; lines >> kind >> name;) {
    if (kind == "model") names.models.push_back(name);
    if (kind == "tensor") names.tensor.push_back(name);
    if (kind == "sequence") names.sequence.push_back(name);
    if (kind == "schedule") names.schedules.push_back(name);
    if (kind == "optimizer") names.optimizers.push_back(name);
    if (kind == "policy") names.policies.push_back(name);
  }
  return names;
}

int64_t budget_of(const std::string& given) {
  int64_t bytes = 0;
  try {
    bytes = parse_bytes(given);
  } catch (const ConfigError& error) {
    throw ConfigError(text("--budget: ", error.what()));
  }
  KUAFU_REQUIRE(bytes > 0, "--budget: ", in_quotes(given),
                " leaves no memory; give a size such as 2GiB");
  return bytes;
}

}  // namespace

Suite read_suite(const SuiteCall& call) {
  SuiteOptions options;
  options.overrides = split_pairs(call.sets, "--set");
  options.timeout_s = call.timeout_s;
  if (call.budget) options.budget = budget_of(*call.budget);
  options.repeats = call.repeats;
  options.plugins = call.plugins;
  options.baselines = baselines_folder();
  options.default_corpus = default_corpus(torch_folder());
  options.names_of_plugins = [&](const std::vector<std::string>& plugins) {
    return names_of_plugins(worker_of(call), plugins);
  };
  return load_suite(call.suite, options);
}

namespace {

Runner make_runner(const SuiteCall& call, const Suite& suite, const std::string& folder,
                   const std::set<std::string>& retried) {
  // Cases of other worlds take no notice of it.
  if (!call.device.empty()) ::setenv("KUAFU_DEVICE", call.device.c_str(), 1);
  RunnerOptions options;
  options.retried = retried;
  options.folder = folder;
  options.worker = worker_of(call);
  options.mpi_launcher = mpi_launcher();
  options.plugins = suite.plugins;
  options.certify_memory = call.certify_memory;
  return {suite, options};
}

/// What a sweep counts: cases, or the runs of all rounds.
const char* unit_of(const Suite& suite) { return suite.repeats > 1 ? " runs" : " cases"; }

SweepEnd sweep(Runner& runner, const Suite& suite, const std::vector<Case>& cases) {
  const RunCounts counts = runner.counts(cases);
  const int64_t done = counts.total - counts.left;
  if (done > 0) {
    std::cerr << done << " of " << counts.total << unit_of(suite) << " were finished before; "
              << counts.left << " to run\n";
  }
  for (const std::string& sentence : runner.repeated(cases)) std::cerr << sentence << "\n";
  const LaunchFolders folders;
  Progress::Options options = progress_options_of_stderr(counts.total, done);
  options.repeats = counts.repeats;
  Progress progress(std::cerr, options);
  return runner.run(cases, progress, [] { return interrupted != 0; });
}

/// "4 of 6 cases, suite 0123456789abcdef", and what rounds add.
std::string words_of_plan(const Suite& suite, const std::vector<Case>& cases) {
  std::string words =
      text(cases.size(), " of ", suite.cases.size(),
           suite.cases.size() == 1 ? " case, suite " : " cases, suite ", suite.hash, "\n");
  if (suite.repeats == 1) return words;
  const auto timed = std::count_if(cases.begin(), cases.end(), is_timed);
  return text(
      words, suite.repeats,
      " rounds: ", static_cast<int64_t>(cases.size()) + (suite.repeats - 1) * timed,
      " runs, fewer where a case does not end well; certificates in the first round, another "
      "order in each\n");
}

/// The lines of the given cases, in the suite's order.
std::vector<Json> lines_of(const RunRecord& record, const std::vector<Case>& cases) {
  std::vector<Json> lines;
  for (const Case& c : cases) {
    for (const Json& line : record.cases) {
      if (line["case_id"] == c.id) lines.push_back(line);
    }
  }
  return lines;
}

/// What is started from here on does not fail because nobody reads what it says.
void leave_closed_pipes() {
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    pollfd asked{output, 0, 0};
    if (::poll(&asked, 1, 0) != 1 || (asked.revents & POLLERR) == 0) continue;
    const File nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (nowhere.is_open()) ::dup2(nowhere.descriptor(), output);
  }
}

/// Figures and report.html; what is missing is told in one line. The suite's exit code: 0, 7 where it
/// could not be written, 130 where it was interrupted, else 1.
int draw_report(const std::string& folder, const Suite& suite, const RunRecord& record) {
  std::string why_not;
  std::vector<std::string> words = python_script("scripts/report/report.py", why_not);
  if (words.empty()) {
    std::cerr << "report left out: " << why_not << "\n";
    return kDone;
  }
  const Json facts = Json::array({report_facts(record, &suite, true, folder)});
  words.insert(words.end(), {folder, "--facts", handed_on(facts)});
  leave_closed_pipes();
  const int status = run_and_wait(words);
  if (status != 0) std::cerr << "report failed with exit code " << status << "\n";
  if (interrupted != 0) return kStopped;
  const bool is_known = status == kDone || status == kUnwritten || status == kStopped;
  return is_known ? status : kBad;
}

/// Why a sweep has nothing to show; empty where a case ended well.
std::string nothing_to_draw(const std::vector<Json>& lines) {
  int64_t late = 0;
  for (const Json& line : lines) {
    if (line["status"] == "ok") return "";
    late += line["status"] == "timeout" ? 1 : 0;
  }
  const bool is_time = late > 0 && late == static_cast<int64_t>(lines.size());
  return text("no case ended well", is_time ? text(": all ", late,
                                                   " took longer than they may; "
                                                   "give them more with --timeout S, or "
                                                   "suite.timeout_s")
                                            : "");
}

int conclude(const Suite& suite, const std::vector<Case>& cases, const Runner& runner,
             const SuiteCall& call, const std::string& folder) {
  const std::vector<Json> lines = lines_of(runner.record(), cases);
  const Rows rows(suite.derived, runner.record(), &suite);
  std::cout << "\n"
            << result_table(lines, column_cells(rows)) << ratio_table(lines) << "\n"
            << status_counts(lines) << "; certificates: " << verdict_counts(lines) << "\n";
  const size_t former = runner.record().former.size();
  if (former > 0) {
    std::cout << former << (former == 1 ? " recorded case is" : " recorded cases are")
              << " no longer in the suite: left out here, kept in " << kRunFile << "\n";
  }
  const auto references = check_references(suite.references, order_of(suite), runner.record());
  const std::string claims = claim_text(check_claims(rows));
  if (!claims.empty()) std::cout << "\nClaims:\n" << claims;
  for (const auto& note : empty_columns(rows)) std::cerr << note << "\n";
  for (const auto& note : notes_of_builds(runner.record())) std::cerr << note << "\n";
  bool is_bad = false, is_all_written = true;
  if (!references.empty()) std::cout << "\nReferences:\n" << reference_text(references);
  for (const auto& reference : references) is_bad = is_bad || !reference.broken.empty();
  for (const Json& line : lines) {
    const bool is_full = is_unwritten(line);
    is_all_written = is_all_written && !is_full;
    is_bad = is_bad || (line["status"] == "failed" && !is_full) || is_different(line["document"]) ||
             findings_of_rounds(line).is_bad;
  }
  std::cout << "\nresults in " << folder << "\n" << std::flush;
  for (const auto& note : refresh_hdf5(folder, runner.record())) std::cerr << note << "\n";
  const bool is_written = is_hdf5_current(folder, runner.record()) && is_all_written;
  const std::string nothing = nothing_to_draw(lines);
  if (call.has_report && !nothing.empty()) std::cerr << "report left out: " << nothing << "\n";
  const bool is_drawn = call.has_report && nothing.empty();
  const int drawn = is_drawn ? draw_report(folder, suite, runner.record()) : kDone;
  if (drawn == kStopped) return kStopped;
  if (is_bad) return kBad;
  return drawn != kDone ? drawn : is_written ? kDone : kUnwritten;
}

}  // namespace

int suite_command(const SuiteCall& call) {
  KUAFU_REQUIRE(call.worker.empty() || ::access(call.worker.c_str(), X_OK) == 0, "--worker ",
                call.worker, ": no such program, or it may not be run");
  for (const std::string& plugin : call.plugins) require_readable("--plugin", plugin);
  const std::set<std::string> retried =
      call.retry ? parse_retry(*call.retry) : std::set<std::string>();
  const Suite suite = read_suite(call);
  const std::vector<Case> cases = filtered(suite.cases, split_pairs(call.filters, "--filter"));
  for (const Case& c : cases) {
    if (!c.missing_data.empty()) throw ConfigError(c.missing_data);
  }
  for (const auto& note : suite.notes) std::cerr << note << "\n";
  if (call.is_dry_run) {
    std::cout << suite.name << ": " << suite.question << "\n\n"
              << plan_table(cases) << "\n"
              << derived_text(suite.derived) << words_of_plan(suite, cases);
    return kDone;
  }
  const std::string folder = call.out.empty() ? "results/runs/" + suite.name : call.out;
  catch_signals();
  Runner runner = make_runner(call, suite, folder, retried);
  for (const auto& note : runner.notes()) std::cerr << note << "\n";
  const SweepEnd end = sweep(runner, suite, cases);
  const std::string untimed = runner.why_not_timed(cases);
  if (!untimed.empty()) std::cerr << untimed << "\n";
  const RunCounts counts = runner.counts(cases);
  if (end == SweepEnd::kInterrupted) {
    std::cerr << "interrupted: " << counts.total - counts.left << " of " << counts.total
              << unit_of(suite) << " are in " << folder << "; the same call goes on\n";
    return kStopped;
  }
  if (end == SweepEnd::kOutOfBudget) {
    std::cerr << "the suite's budget of " << print_seconds(*suite.budget_s)
              << " is spent: " << counts.left << unit_of(suite)
              << " are left; the same call goes on\n";
  }
  return conclude(suite, cases, runner, call, folder);
}

}  // namespace kuafu
