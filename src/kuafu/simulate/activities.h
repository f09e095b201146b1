// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/record/activity.h"
#include "kuafu/simulate/replay.h"

namespace kuafu {

/// The mark at the end of a training step: what no action of a pipeline names is the update.
inline constexpr const char* kStepMark = "update";

/// The last step of a recorded world: what every rank computes, waits for and communicates, by the
/// replay. A mark "forward 2F0" names what was done since the mark before, and the label of this
/// one; steps end with kStepMark. Time 0 is when the first rank begins the step.
/// Throws ConfigError where a rank has no kStepMark.
ActivityLog activities_of(const SimulatedWorld& world, const ClusterPlan& cluster,
                          const std::string& name);

}  // namespace kuafu
