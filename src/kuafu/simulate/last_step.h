// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/engine/run.h"
#include "kuafu/record/activity.h"

namespace kuafu {

/// What every rank of a resolved plan would do in its second step, on its cluster: the same format
/// as a real run's, here with idle time told apart from communication in collectives too. Computes
/// action by action, so that its length may differ from simulate()'s, which lets a rank's work
/// between two calls overlap its memory traffic.
ActivityLog simulate_last_step(const Plan& plan, const Registries& registries,
                               const std::string& name);

/// Every event of every rank in its second step, or the only one: docs/trace.md. Values that the
/// program reads off its data are 1.
std::vector<Trace> trace_last_step(const Plan& plan, const Registries& registries);

}  // namespace kuafu
