// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kuafu/experiment/child.h"
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
  std::set<std::string> retried;  ///< statuses whose cases run again
  double grace_s = 5;             ///< after its own time-out, before a case is killed from outside
};

enum class SweepEnd { kComplete, kInterrupted, kOutOfBudget };

/// Runs the cases of a suite one after the other, each in a process of its own, into one results
/// folder. Cases of which the folder holds a final line are not run again (finality.h); a suite that
/// has grown or shrunk goes on in its folder (membership.h).
class Runner {
 public:
  /// Locks the folder and reads what it holds. Throws ConfigError: not writable, another runner,
  /// another suite (naming both hashes).
  Runner(const Suite& suite, RunnerOptions options);

  /// Which of `cases` the folder lacks, or holds without a final line.
  std::vector<Case> unfinished(const std::vector<Case>& cases) const;

  /// Why recorded ones among `cases` run again, a sentence each.
  std::vector<std::string> repeated(const std::vector<Case>& cases) const;

  /// Runs them in order. A case that throws, crashes, hangs or runs out of memory is recorded as
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
  void put(const Case& c, const Json& line);
  std::optional<Json> run_case(const Case& c, const std::function<bool()>& tick);
  std::vector<std::string> words(const Case& c, const std::string& case_folder) const;
  void write_plan(const Case& c, const std::string& case_folder) const;

  RunnerOptions options_;
  std::optional<double> budget_s_;
  std::optional<FolderLock> lock_;
  std::optional<RunLog> log_;
  std::vector<std::string> notes_;
  std::set<std::string> has_run_;  ///< ids of what this runner ran: final for it
};

}  // namespace kuafu
