// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/registries.h"

namespace kuafu::conformance {

/// Everything about one memory policy: on random traces its moves keep the rules of memory/moves.h and
/// repeat themselves, it is a function of what is known, and it moves no less than the least there is;
/// and trainings under it, on the given rank counts and in little memory, have the losses of plans
/// without tiers. A policy that this build cannot run is refused, with the reason.
std::vector<Finding> check_policy(const Registries& registries, const std::string& name,
                                  const std::vector<int64_t>& sizes, const Tell& tell = {});

}  // namespace kuafu::conformance
