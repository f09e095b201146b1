// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kuafu/plan/plan.h"

namespace kuafu {

/// Writes where a run of `plan` begins as safetensors, so that another program can train the same:
/// every parameter before the first step, by name, the plan as TOML ("plan" of the metadata), and
/// the samples of the first steps: "batches.inputs", "batches.targets", of pairs also
/// "batches.segments" (steps, batch, sequence) in i64; of images "batches.images" (steps, batch,
/// patches, pixels); of both "batches.labels" (steps, batch). Weights do not depend on the plan's
/// parallel keys. Throws ConfigError where the plan, resolved, is not of one rank and in f32.
void write_start(const Plan& plan, int64_t steps, const std::string& path);

}  // namespace kuafu
