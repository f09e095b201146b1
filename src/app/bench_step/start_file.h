// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// Writes where a run of `plan` begins as safetensors, so that another program can train the same:
/// every parameter before the first step, by name, and the tokens of the first steps as
/// "batches.inputs" and "batches.targets" (steps, batch, sequence) in i64. Weights do not depend on
/// the plan's parallel keys. @pre the plan is resolved for one rank
void write_start(const Plan& plan, int64_t steps, const std::string& path);

}  // namespace kuafu
