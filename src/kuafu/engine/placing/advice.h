// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/engine/registries.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Why a plan is refused, with the nearest values that can be placed of the keys that the reason
/// names and of the tensor ranks: each was tried, on meta tensors. The reason alone where nothing
/// near it can. @pre plan is resolved; a trial costs about as much as check_placement.
std::string advised(const std::string& reason, const Plan& plan, const Registries& registries);

}  // namespace kuafu
