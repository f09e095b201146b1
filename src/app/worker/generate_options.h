// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "app/worker/options.h"
#include "kuafu/generation/sampling.h"

namespace kuafu {

// Options of `kuafu generate`, checked before anything is computed. Each throws ConfigError naming the
// option.

/// How tokens are chosen; `--tokens` and `--stop` are checked with it.
Sampling sampling_of(const GenerateOptions& how);

}  // namespace kuafu
