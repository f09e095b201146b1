// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/proof/certificate.h"

namespace kuafu {

/// Runs of more steps are replayed up to their first three: a replay takes twice a reference's step.
inline constexpr int64_t kReplayedSteps = 32;

/// The order of an engine's pushes, every rank's losses, what the servers hold. Books nothing.
/// Collective.
StaleRun stale_run(Engine& engine, Communicator& world, const std::vector<double>& losses);

/// The certificate of a plan whose replicas go on by themselves. Its f64 twin: losses, gradients of
/// the first step and the parameters after three, against the reference that replays the order of
/// its pushes. The plan itself: every loss of every worker in the timed run, whose order the
/// reference replays, and what its servers hold in the end; of a run of more than kReplayedSteps
/// the losses of the first three steps, and none from where rounding alone moves one by a tenth; of steps of its own where `timed` is null. A loss shows the
/// gradients and updates before it; these are not compared by themselves. Orders that the plan's
/// staleness does not allow are refuted. Complete on rank 0 alone. Collective.
void certify_replayed(const Plan& plan, const Registries& registries, Communicator& world,
                      const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                      const EngineOptions& options, const StaleRun* timed, Certificate& c);

}  // namespace kuafu
