// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/parallel/pipeline/on_cores.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Whether ranks talk, and whether what they do is counted.
struct StepperOptions {
  bool is_silent = false;       ///< no communication at all
  bool is_metered = true;       ///< ledger, memory book, FLOPs
  bool is_mpi = false;          ///< this process is one of the ranks that an MPI launcher started
  int64_t resident_before = 0;  ///< bytes resident before there was anything
};

/// Steps done on request.
struct StepSamples {
  /// From the moment the last rank ended the step before to the moment the last rank ends this one.
  /// Of ranks that form a pipeline and never talk: what their actions take on a core to themselves,
  /// played by the timetable on the cores there are, so that the bubble is in it.
  std::vector<double> seconds;
  std::vector<double> losses;
  std::vector<int64_t> tensor_bytes;  ///< of each rank, at the peak of these steps; 0 unmetered
  /// Of each process, at that peak, without those from before.
  std::vector<int64_t> resident_bytes;
};

/// Ranks that train a plan a few steps at a time. Threads sleep in between without using a core; MPI
/// processes wait in a call, as MPI does: whoever drives them stops them meanwhile.
class Stepper {
 public:
  /// @pre plan is resolved, and in the MPI world has as many ranks as the launcher started
  Stepper(const Plan& plan, const StepperOptions& options) : plan_(plan), options_(options) {}

  /// What rank 0 is given to ask for steps with.
  using RunSteps = std::function<StepSamples(int64_t steps)>;

  /// Starts the ranks, calls `lead` on rank 0 and ends them when it returns. Rethrows the first
  /// error of any rank; in the MPI world an error ends all of them.
  void lead(const std::function<void(const RunSteps& run)>& lead);

 private:
  struct RankSamples {
    double begin = 0;
    std::vector<double> ends;
    std::vector<double> losses;
    int64_t tensor_bytes = 0, resident_bytes = 0;
    std::vector<pipeline::RowSeconds> actions;  // of each step, of silent pipelines alone
  };

  void rank_body(Communicator& world, const std::function<void(const RunSteps&)>& lead);
  void follow(const std::function<RankSamples(int64_t)>& steps, int rank);
  /// Rank 0 leads, the others do what it broadcasts, until it is 0 steps.
  void lead_by_calls(Communicator& world, const std::function<RankSamples(int64_t)>& steps,
                     const std::function<void(const RunSteps&)>& lead);
  StepSamples together(Communicator& world, const std::function<RankSamples(int64_t)>& steps,
                       int64_t count);
  StepSamples samples_of_all(int64_t count) const;
  StepSamples run(const std::function<RankSamples(int64_t)>& steps, int64_t count);
  bool is_silent_pipeline() const { return options_.is_silent && plan_.parallel.pipeline.size > 1; }
  std::vector<double> step_seconds(size_t count) const;
  std::vector<double> limit_seconds(size_t count) const;
  /// Tells the others: `count` more steps, or 0 for the end.
  void order(int64_t count);

  Plan plan_;
  StepperOptions options_;
  pipeline::Timetable schedule_;  // written by rank 0 before the first step
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_orders_ = 0;  // guarded by mutex_, as all below
  int64_t ordered_ = 0;
  int num_answers_ = 0;
  bool has_failed_ = false;
  std::vector<RankSamples> answers_;
};

}  // namespace kuafu
