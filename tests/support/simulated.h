// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/support/plans.h"

namespace kuafu::tests {

/// Expects equal counts on every axis of one rank.
void expect_same_traffic(const TrafficByAxis& simulated, const TrafficByAxis& real,
                         const std::string& where);

/// Expects the simulated world to meter what thread ranks do: bytes, messages, peers, FLOPs and
/// peak memory of each rank, by axis and category.
void expect_simulated_equals_threads(const Plan& plan, const std::string& name);

}  // namespace kuafu::tests
