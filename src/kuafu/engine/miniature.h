// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/plan/plan.h"

namespace kuafu {

/// The same shape family in miniature: heads, divisibilities and grid stay, sizes shrink.
/// @pre the plan is resolved.
Plan miniature(Plan plan);

}  // namespace kuafu
