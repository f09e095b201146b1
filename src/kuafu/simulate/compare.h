// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/comm/simulated.h"
#include "kuafu/engine/run.h"

namespace kuafu {

/// What a rank metered otherwise than the same rank simulated for that transport; empty where
/// nothing.
std::string difference(const RankResult& real, const RankResult& simulated, Transport transport);

/// The same of all ranks, simulated for the transport whose counts they hold. Throws Refused for
/// what cannot be simulated.
std::string difference(const Plan& plan, const Registries& registries,
                       const std::vector<RankResult>& real, Transport transport);

}  // namespace kuafu
