// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/base/trace.h"
#include "kuafu/record/activity.h"

namespace kuafu {

/// What ranks with clocks did in the last step of their traces, one trace a rank, from the first
/// begin to the last end. A phase "forward 2F0" directly inside the step is what its rank computes
/// while no call takes its time; before the first such phase it loads, after the last one but
/// "update" it updates. A rank that waits for a message whose send has not begun is idle; waits in
/// collectives count as communication, since no rank can tell by itself who is late.
/// Throws ConfigError where a rank has no step.
ActivityLog timeline_of(const std::vector<Trace>& ranks, const std::string& name);

}  // namespace kuafu
