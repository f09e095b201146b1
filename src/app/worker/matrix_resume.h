// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/worker/trial.h"
#include "kuafu/checkpoint/checkpoint.h"

// The choice `resumed` of the matrix: a run that was stopped and goes on is the run without a stop.
namespace kuafu::matrix {

/// Settings of a plan of another placement that learns the same: one rank, or for a plan of one
/// rank two replicas with ZeRO-1.
Overrides other_placement(const Overrides& settings, int64_t ranks);

/// What a state differs in from the one expected; "" where no value is further off than `tolerance`
/// times the largest of its kind (parameters, or one slot of the optimizer). 0: no bit differs.
std::string state_difference(const Checkpoint& expected, const Checkpoint& actual,
                             double tolerance);

/// How far the losses of two placements of a plan may be apart, of their value.
double loss_tolerance(const Plan& plan);
/// ... and their f64 states, of the largest value of a kind.
double state_tolerance(const Plan& plan);

/// Runs a plan on the ranks of some world.
using RunPlan =
    std::function<std::vector<RankResult>(const Plan& plan, const TrialOptions& options)>;

/// What a run under `plan` that goes on from a save of `saver` came to.
struct ResumedRun {
  std::string difference;  ///< from the run without a stop; "" where there is none
  Certificate certificate;
};

/// Saves in the middle of a run of `saver`, goes on under `plan` to the end, certifies what went on,
/// and compares its losses and last state with those of `plan` without a stop: to the bit where
/// both plans are one, else within the tolerances (states of f64 plans; none where `plan` has
/// staleness: what it pushed before depends on it). What another plan's save is loaded as is held to
/// the save, to the bit, whatever the type. `folder` is made for the
/// checkpoints and removed. Throws what `run` throws.
ResumedRun run_resumed(const Plan& saver, const Plan& plan, const std::string& folder,
                       const RunPlan& run);

}  // namespace kuafu::matrix
