// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu {

/// Cases of the suite's own beside the baselines' rows that did the same work on the same ranks: their
/// tokens/s over the baseline's, round by round. Empty where a suite compares with none, or nothing of
/// both sides was timed.
std::string ratio_table(const std::vector<Json>& lines);

}  // namespace kuafu
