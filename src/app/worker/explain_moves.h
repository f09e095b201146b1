// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/run.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// Prints what goes between tiers of memory in a step of this rank, what lies where while it does, and
/// what each policy would move beside the least there is; nothing for plans without tiers.
void print_moves(const Plan& plan, const RankResult& rank);

/// The same as JSON (docs/explain.md); null for plans without.
Json moves_json(const Plan& plan, const RankResult& rank);

}  // namespace kuafu
