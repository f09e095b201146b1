// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/registries.h"

namespace kuafu::conformance {

/// Everything about one sequence mode on the given rank counts: the result and gradients of attention
/// against plain ATen on the whole sample, causal or not, with selective recomputation or without,
/// also in half precision; the same bits twice; elements received against cost(); the simulated world;
/// a certified training. Shapes go beyond 64 elements in every dim; those that check() refuses are
/// told as refused. Up to the first rank count that fails.
std::vector<Finding> check_sequence(const Registries& registries, const std::string& mode,
                                    const std::vector<int64_t>& sizes, const Tell& tell = {});

/// One of those checks, on as many of the shapes, for tests: "attention", "bits", "traffic", "half",
/// "worlds", "training".
std::vector<std::string> sequence_checks();
std::vector<Finding> run_sequence_check(const std::string& check, const Registries& registries,
                                        const std::string& mode, int64_t ranks,
                                        Shapes shapes = Shapes::kAll, const Tell& tell = {});

}  // namespace kuafu::conformance
