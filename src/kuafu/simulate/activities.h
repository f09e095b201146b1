// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/record/activity.h"
#include "kuafu/simulate/replay.h"

namespace kuafu {

/// The last step of the traces of all ranks of a simulated world: what every rank computes, waits
/// for and communicates, by the replay. The end of a phase "forward 2F0" directly inside a step
/// names what was done since the phase before; what follows the last one is the update. Time 0 is
/// when the first rank begins the step. Throws ConfigError where a rank has no phase "step".
ActivityLog activities_of(const std::vector<Trace>& traces, const ClusterPlan& cluster,
                          const std::string& name);

}  // namespace kuafu
