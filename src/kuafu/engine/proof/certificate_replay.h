// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/proof/push_check.h"

namespace kuafu {

/// Runs of more steps are replayed up to their first three: a replay takes twice a reference's step.
inline constexpr int64_t kReplayedSteps = 32;

/// Whether the reference replays pushes: replicas of the plan go on by themselves.
bool is_replayed(const Plan& plan);

/// From now on an engine of such a plan keeps wanted_pushes(). @pre it has not stepped
void witness_pushes(Engine& engine, int64_t memory);

/// The order of an engine's pushes, every rank's losses, what the servers hold, what was kept. Books
/// nothing. Collective.
PushedRun pushed_run(Engine& engine, Communicator& world, const std::vector<double>& losses);

/// The certificate of such a plan: of its f64 twin, three steps, and of the plan itself, all steps of
/// the timed run, or three of its own where `timed` is null. In each the reference replays the order
/// of pushes: every loss of every worker, and what the servers hold in the end; of a run of more than
/// kReplayedSteps the losses of the first three steps, and none from where rounding alone moves one
/// by a tenth. Then loss, gradient and update of every push that was kept (check_pushes). Where none
/// was, and the replay did not reach the end: "not_run". Orders that the plan's rules do not allow
/// are refuted. Complete on rank 0 alone. Collective.
void certify_replayed(const Plan& plan, const Registries& registries, Communicator& world,
                      const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                      const EngineOptions& options, const PushedRun* timed, Certificate& c);

}  // namespace kuafu
