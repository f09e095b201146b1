// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// Every key of a resolved plan, nested as in TOML; of optimizer.bound and optimizer.exclude what
/// "auto" became.
nlohmann::ordered_json plan_json(const Plan& plan);

}  // namespace kuafu
