// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "kuafu/comm/ledger.h"
#include "kuafu/engine/proof/last_step_check.h"
#include "kuafu/engine/proof/witness.h"
#include "kuafu/engine/run.h"
#include "kuafu/meter/book.h"
#include "kuafu/meter/op_trace.h"

namespace kuafu {

/// One rank's steps, and all that goes on between two of them: validation, saving, requests.
class Training {
 public:
  /// What measures the steps.
  struct Meters {
    RankBook& book;
    Ledger& ledger;
  };

  /// FLOPs and traffic of this rank.
  struct Counts {
    int64_t flops = 0, flops_recomputed = 0, flops_optimizer = 0;
    Ledger traffic;
  };

  /// Loads a checkpoint where the run goes on from one; this is in `result`. Collective.
  /// @pre all arguments outlive it
  Training(const Plan& plan, const Registries& registries, const RunOptions& options,
           Communicator& world, Engine& engine, Meters meters, RankResult& result);

  /// Makes the steps that are left. Collective.
  void run();
  /// After a whole run: the last validation loss, and what it says of the last checkpoint and of
  /// the run: where it is no number, the run has diverged.
  /// Collective.
  void finish();

  std::optional<Witness> take_witness() { return std::move(witness_); }
  /// What was compared of the last step as it was made; none where that was not.
  std::optional<Proof> last_step() const;
  /// Of the steps that `result` has: without the one in which the loss was no number.
  /// @pre finish() was not called
  Counts counts() const;

 private:
  /// The validation in which the run that was saved has been stopped.
  void catch_up();
  void step();
  /// False where the loss is no number.
  bool make_step(StepDone& done);
  Counts counts_now() const;
  /// Whether all ranks stand between two steps now, and hold the same values: always where replicas
  /// are in step.
  bool meets(int64_t steps);
  /// Where replicas are not in step each sees its own losses: false where one of them is no number,
  /// and all leave the steps from there on. @pre they meet
  bool agree_on_losses();
  /// The loss after `step` steps is no number.
  void diverge(int64_t step, const std::string& why);
  /// By the validation loss after the last step.
  void diverge_at_the_end();
  void tell_made();
  void validate(StepDone& done);
  /// None where the run is asked to stop meanwhile; this is in `asked_`, on all ranks.
  std::optional<double> validation_loss();
  /// Adds to `asked_`. Collective.
  void ask();
  void save();
  /// Of a run that was asked to stop.
  void save_last();
  void show(StepDone& done);

  const Plan& plan_;
  const RunOptions& options_;
  Communicator& world_;
  Engine& engine_;
  Meters meters_;
  RankResult& result_;
  std::optional<Saver> saver_;
  std::optional<Agreement> agreement_;
  Agreement::Asked asked_;  ///< since the last step
  RankResult told_;         ///< where replicas are not in step: what tell_made() tells
  std::optional<int64_t> first_unsound_;  ///< of this replica's own losses: its step
  void begin_proof(const Registries& registries);

  std::optional<Witness> witness_;
  std::optional<LastStepCheck> last_step_;
  std::optional<OpTraceScope> traced_;
  /// Before the newest steps, as many as a run that diverges may leave: with `agreement_`.
  std::deque<Counts> before_steps_;
  int64_t flops_ = 0;  ///< of all ranks in the first step
};

}  // namespace kuafu
