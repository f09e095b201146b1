// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// Writes what a training of `plan` starts from to a safetensors file: every parameter under its
/// name, and the samples of `steps` steps as "data.inputs" and "data.targets", I64, (steps * batch,
/// sequence). Another program that starts from it must find the same losses.
/// @pre plan is resolved for one rank. Throws ConfigError with path and reason.
void write_start(const Plan& plan, int64_t steps, const std::string& file);

}  // namespace kuafu
