// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/plan/keys.h"
#include "kuafu/plan/plan.h"

namespace kuafu::plan {

/// With what "auto" stands for, where the plan alone decides it: not data.mode, which the transport
/// does, nor optimizer.exclude of a plug-in's rule.
Plan spelled_out(Plan plan);

/// Whether the value of a key means what its default does beside the other values of the plan: it is
/// the default, or what "auto" stands for.
bool means_default(const Key& key, const Plan& plan);

}  // namespace kuafu::plan
