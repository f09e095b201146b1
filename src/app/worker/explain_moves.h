// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kuafu/engine/run.h"
#include "kuafu/memory/play.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// What goes between tiers of memory in a step of one rank, and what other policies would move.
struct ExplainedMoves {
  struct Row {
    std::string policy;
    double bytes = 0;  ///< a step
  };
  bool has_choice = false;  ///< else a budget that does not hold a step, or one step alone
  memory::Played played = {};
  std::vector<Row> rows = {};
  memory::LeastBytes least = {};
};

/// None for plans without tiers.
std::optional<ExplainedMoves> explain_moves(const Plan& plan, const memory::PolicyRules& policies,
                                            const RankResult& rank);

/// Prints it, and what lies where over the step.
void print_moves(const Plan& plan, const RankResult& rank, const ExplainedMoves& moves);

/// The same as JSON (docs/explain.md).
Json moves_json(const Plan& plan, const RankResult& rank, const ExplainedMoves& moves);

}  // namespace kuafu
