// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/plan/origins.h"
#include "kuafu/plan/plan.h"

namespace kuafu::plan {

/// What a plan asks for in vain and may ask for all the same, a sentence each: what has an effect on
/// other numbers of ranks, which sweeps go through, a vocabulary beyond that of its data, and a warm-up
/// beyond the run's last step. What has none whatever the number of ranks is an error of parse_plan.
/// @pre resolved
std::vector<std::string> warnings(const Plan& resolved, const Origins& origins);

}  // namespace kuafu::plan
