// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/experiment/child.h"
#include "kuafu/experiment/rounds.h"
#include "kuafu/experiment/suite.h"
#include "kuafu/record/folder_lock.h"
#include "kuafu/record/progress.h"
#include "kuafu/record/run_log.h"

namespace kuafu {

struct RunnerOptions {
  std::string folder;                                  ///< of the results
  std::string worker;                                  ///< the program that runs one plan
  std::vector<std::string> mpi_launcher = {"mpirun"};  ///< before `-n RANKS` in the MPI world
  std::vector<std::string> plugins;
  int64_t certify_memory =
      0;  ///< bytes for the reference of a certificate; 0: the worker's default
  std::set<std::string> retried;  ///< statuses whose cases run again
  double grace_s = 5;             ///< after its own time-out, before a case is killed from outside
};

enum class SweepEnd { kComplete, kInterrupted, kOutOfBudget };

/// What a sweep has to do and has done.
struct RunCounts {
  int64_t total = 0;    ///< with the rounds of cases that have not run yet
  int64_t left = 0;     ///< of these
  int64_t repeats = 0;  ///< of those left, runs of a later round
};

/// Runs the cases of a suite one after the other, each in a process of its own, into one results
/// folder; then, `suite.repeats` - 1 times more, those that can be timed again (rounds.h). Runs of
/// which the folder holds a final line or entry are not made again (finality.h); a suite that has
/// grown or shrunk goes on in its folder (membership.h).
class Runner {
 public:
  /// Locks the folder and reads what it holds. Throws ConfigError: not writable, another runner,
  /// another suite (naming both hashes).
  /// @pre `suite` outlives it
  Runner(const Suite& suite, RunnerOptions options);

  /// Which of `cases` the folder lacks, or holds without a final line.
  std::vector<Case> unfinished(const std::vector<Case>& cases) const;

  /// Runs of `cases`, all rounds.
  RunCounts counts(const std::vector<Case>& cases) const;

  /// Why recorded ones among `cases` run again, a sentence each, and why some are not timed again.
  std::vector<std::string> repeated(const std::vector<Case>& cases) const;

  /// Why cases that ran just now had no later round: a worker of another commit than this program
  /// says so in its document. Empty where none is left out.
  std::string why_not_timed(const std::vector<Case>& cases) const;

  /// Runs them round by round. A case that throws, crashes, hangs or runs out of memory is recorded as
  /// such and the next one follows. `is_interrupted` ends the sweep within a tick; the case in hand
  /// is then dropped. Throws ConfigError where the record cannot be written.
  SweepEnd run(const std::vector<Case>& cases, Progress& progress,
               const std::function<bool()>& is_interrupted);

  const RunRecord& record() const { return log_->record(); }
  /// What the user should know: recovered damage, missing locks.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void take_up(const Suite& suite);
  std::string why_unfinished(const Case& c) const;
  const Json* line_of(const Case& c) const;
  std::vector<Turn> due_in(int64_t round, const std::vector<Case>& cases) const;
  bool is_due(const Turn& turn) const;
  void put(const RoundRun& run);
  std::optional<RoundRun> run_turn(const Turn& turn, const std::function<bool()>& tick);
  std::vector<std::string> words(const Turn& turn, const std::string& case_folder) const;
  void write_plan(const Case& c, const std::string& case_folder) const;

  const Suite& suite_;
  RunnerOptions options_;
  std::string sweep_;  ///< this call, told apart from all others
  Json provenance_;    ///< of this program
  Json plugins_;       ///< hash of the bytes of each plug-in's file, by name
  std::optional<FolderLock> lock_;
  std::optional<RunLog> log_;
  std::vector<std::string> notes_;
  std::set<std::pair<std::string, int64_t>> has_run_;  ///< id and round of this runner's runs:
                                                       ///< final for it
};

}  // namespace kuafu
