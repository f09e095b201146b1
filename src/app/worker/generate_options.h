// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/worker/options.h"
#include "kuafu/generation/sampling.h"

namespace kuafu {

// Options of `kuafu generate`, checked before anything is computed. Each throws ConfigError naming the
// option.

/// Prompts as they are given, each with its place for messages.
std::vector<std::pair<std::string, std::string>> given_prompts(const GenerateOptions& how);

/// How tokens are chosen; `--tokens` and `--stop` are checked with it.
Sampling sampling_of(const GenerateOptions& how);

}  // namespace kuafu
