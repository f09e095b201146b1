// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// Whether a run may go on under `now` from what was saved under `saved`: keys that decide which
/// parameters and optimizer state there are, and which samples come next, must agree. Where and how
/// it runs (parallel, memory, micro_batch), element type and rates may change.
/// Throws ConfigError naming the first key that differs and both values; `saved_as` is the
/// checkpoint's folder. @pre both plans are resolved
void check_resumable(const Plan& saved, const Plan& now, std::string_view saved_as);

}  // namespace kuafu
