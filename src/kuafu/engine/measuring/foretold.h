// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/placing/placement.h"
#include "kuafu/memory/uses.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// The uses of a training step of one rank with tiers of memory before it is made, with what is in use
/// beside the chunks at each moment: those of the same rank alone on meta tensors, where everything
/// leaves between its uses. No moments where LibTorch cannot compute the shapes of its model. Throws
/// OutOfMemory where even that does not fit the plan's budgets. @pre plan is resolved
memory::UseTrace foretold_uses(const Plan& plan, const Registries& registries, int rank);

}  // namespace kuafu
