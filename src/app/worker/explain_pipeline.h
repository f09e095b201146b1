// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/registries.h"

namespace kuafu {

/// Prints the stages of a plan with several and draws its timetable; nothing for plans with one.
void print_pipeline(const Plan& plan, const Registries& registries);

}  // namespace kuafu
