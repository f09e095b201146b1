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

/// Every event of every rank in its second step, or the only one: docs/trace.md. What the program
/// reads off its data are the oracles of `real`, a trace a rank, in their order; 1 once they are
/// used up. Throws ConfigError where an oracle given is not the one read, or `real` has another
/// number of ranks.
std::vector<Trace> trace_last_step(const Plan& plan, const Registries& registries,
                                   const std::vector<Trace>& real = {});

}  // namespace kuafu
