// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "kuafu/engine/registries.h"
#include "kuafu/plan/plan.h"

namespace kuafu::tests {

/// What a miniature must have as its plan has it, told from the plan, its parameters and its stages
/// by other rules than Features: words by name, so that a test prints what was lost.
std::map<std::string, std::string> kept_of(const Plan& plan, const Registries& registries);

}  // namespace kuafu::tests
