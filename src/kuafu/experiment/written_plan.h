// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// The base plan of `origin` with the overrides in their places, one dotted key a line.
std::string written_plan(const std::string& base, const std::string& origin,
                         const Overrides& overrides);

}  // namespace kuafu
