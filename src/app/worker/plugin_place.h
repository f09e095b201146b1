// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kuafu/plan/origins.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Runs `body`; a PluginError of what a key of the plan chose has that key, its value and where it
/// was given in front. `plan` is read when it comes: `body` may resolve it.
void with_plugin_place(const Plan& plan, const std::function<plan::Origins()>& origins,
                       const std::function<void()>& body);

}  // namespace kuafu
