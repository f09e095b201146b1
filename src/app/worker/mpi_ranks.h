// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "app/worker/trial.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/engine/run.h"
#include "kuafu/plan/plan.h"
#include "kuafu/record/files.h"

namespace kuafu {

/// The process of an MPI rank ended in the middle of a plan.
class RankDied : public Error {
 public:
  using Error::Error;
};

/// MPI ranks that wait for plans: real processes under the launcher, started once for many small
/// plans, since starting them takes longer than a plan. Each rank has a line to this process and
/// sleeps in it between plans.
class MpiRanks {
 public:
  struct Options {
    int64_t ranks = 8;  ///< to start with; more where a plan has more
    MpiCollectives collectives = MpiCollectives::kOwn;
    std::vector<std::string> plugins = {};
  };

  explicit MpiRanks(Options options) : options_(std::move(options)) {}
  ~MpiRanks() { stop(); }
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  /// Starts the ranks where none run or too few, or where they have had enough plans: groups of a
  /// plan stay with MPI until the end.
  void prepare(int64_t ranks = 1);

  /// Runs the plan on the first ranks: what each measured. Throws what a rank threw, the types
  /// OutOfMemory, Refused, SaveFailed and ConfigError kept, RankDied, and RankLost where there is no
  /// answer within the time-out. After any exception the ranks are of no use: stop() them.
  /// Of `checkpoint`: folder, every, resumes.
  /// @pre prepare() was called, here or in the process that forked this one.
  std::vector<RankResult> run(const Plan& plan, const TrialOptions& options) const;

  /// Kills ranks and launcher, each by its own handle, and waits for their end.
  void stop();

 private:
  struct Rank {
    File line, process;
  };
  void start(int64_t ranks);
  void accept_ranks(const File& door);
  std::string last_words() const;

  const Options options_;
  std::vector<Rank> ranks_;
  pid_t launcher_ = -1;
  File output_;            ///< of launcher and ranks
  int64_t num_plans_ = 0;  ///< since the start
};

/// What the ranks' processes are told.
struct RanksOptions {
  std::string door;  ///< name of the socket where they are expected
  std::string mpi_collectives = "own";
  std::vector<std::string> plugins;
};

/// A rank of MpiRanks: runs the plans that come on its line until that closes.
int ranks_command(const RanksOptions& options);

}  // namespace kuafu
