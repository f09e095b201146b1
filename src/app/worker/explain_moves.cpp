// SPDX-License-Identifier: Apache-2.0
#include "app/worker/explain_moves.h"

#include <algorithm>
#include <iostream>

#include "kuafu/base/units.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

using Align = Table::Align;

constexpr int64_t kMostMomentsDrawn = 120, kMostChunksDrawn = 60;

/// Whether there is a step to choose in, and room for what each of its moments uses.
bool has_choice(const memory::UseTrace& uses, int64_t budget) {
  for (int64_t t = 0; t < uses.num_moments(); ++t) {
    const int64_t in_use = uses.moments[static_cast<size_t>(t)].in_use;
    if (memory::used_bytes(uses, t) + in_use > budget) return false;
  }
  return uses.num_moments() > 0;
}

/// A line a chunk, a sign a moment: read, kept from one use to another, at home, changed there.
void draw(const memory::UseTrace& uses, const memory::Played& played) {
  std::cout
      << "  what lies where, a moment a column: # read on the device, + kept there, . at home, "
         "= updated there\n";
  if (uses.num_moments() > kMostMomentsDrawn || uses.num_chunks() > kMostChunksDrawn) {
    std::cout << "  " << uses.num_chunks() << " chunks over " << uses.num_moments()
              << " moments are too many to draw\n";
    return;
  }
  std::vector<std::string> lines(uses.chunks.size());
  memory::OnDevice on_device = played.start;
  auto next = played.moves.begin();
  for (int64_t t = 0; t < uses.num_moments(); ++t) {
    for (; next != played.moves.end() && next->moment == t; ++next) {
      on_device.resident[static_cast<size_t>(next->chunk)] = next->to == memory::Tier::kDevice;
    }
    const memory::Moment& moment = uses.moments[static_cast<size_t>(t)];
    for (int64_t c = 0; c < uses.num_chunks(); ++c) {
      const memory::ChunkUse* use = memory::use_of(moment, c);
      const bool is_read = use != nullptr && memory::needs_device(use->access);
      lines[static_cast<size_t>(c)] += is_read            ? '#'
                                       : on_device.has(c) ? '+'
                                       : use != nullptr   ? '='
                                                          : '.';
    }
  }
  Table table({{"chunk of"}, {"bytes", Align::kRight}, {"a step"}});
  for (size_t c = 0; c < lines.size(); ++c) {
    table.add({uses.chunks[c].group, print_bytes(uses.chunks[c].bytes), lines[c]});
  }
  std::cout << table.str();
}

void print_rows(const ExplainedMoves& moves) {
  const memory::LeastBytes& least = moves.least;
  Table table({{"policy"}, {"host to device", Align::kRight}, {"over the least", Align::kRight}});
  for (const ExplainedMoves::Row& row : moves.rows) {
    const auto bytes = static_cast<int64_t>(row.bytes);
    const std::string over =
        least.is_known ? print_bytes(std::max<int64_t>(0, bytes - least.bytes)) : "-";
    table.add({row.policy, print_bytes(bytes), over});
  }
  if (least.is_known) {
    table.add({least.is_proven ? "least" : "least found", print_bytes(least.bytes), ""});
  }
  std::cout << table.str();
  if (!least.why_not.empty()) std::cout << "  least: " << least.why_not << "\n";
}

}  // namespace

std::optional<ExplainedMoves> explain_moves(const Plan& plan, const memory::PolicyRules& policies,
                                            const RankResult& rank) {
  const std::optional<TierOptions> tiers = tier_options(plan, policies);
  if (!tiers) return {};
  ExplainedMoves out;
  const int64_t budget = tiers->budget();
  out.has_choice = has_choice(rank.uses, budget);
  if (!out.has_choice) return out;
  out.played = memory::play(rank.uses, budget, tiers->policy, tiers->knobs);
  out.least = memory::least_for_record(rank.uses, budget);
  for (const auto& [name, summary, rule] : policies.entries()) {
    // Nobody who asks for another policy waits for a search: its least is below.
    const bool is_long = rule.searches && name != tiers->name && !out.least.is_proven;
    if (is_long || !rule.lacks.empty()) continue;
    const memory::Played played = memory::play(rank.uses, budget, rule, tiers->knobs);
    out.rows.push_back({name, played.bytes_a_step()});
  }
  return out;
}

void print_moves(const Plan& plan, const RankResult& rank, const ExplainedMoves& explained) {
  const MoveCounts& moves = rank.moves;
  std::cout << "  on the host " << print_bytes(moves.host_peak) << " of states";
  if (plan.memory.host) {
    std::cout << ", budget " << print_bytes(*plan.memory.host)
              << (moves.host_peak > *plan.memory.host ? ": NOT ENOUGH" : ": enough");
  }
  std::cout << "\n\nMoves  of that rank, a step of policy " << plan.memory.policy
            << ", the first one excepted\n";
  Table table({{"from"}, {"to"}, {"what"}, {"bytes", Align::kRight}});
  table.add({"host", "device", text("parameters, ", moves.chunks, " chunks"),
             print_bytes(moves.step_to_device)});
  table.add({"device", "host", "gradients", print_bytes(moves.step_to_host)});
  std::cout << table.str();
  if (!explained.has_choice) {
    std::cout << "  a budget that does not hold a step: no policy chooses\n";
    return;
  }
  draw(rank.uses, explained.played);
  print_rows(explained);
}

Json moves_json(const Plan& plan, const RankResult& rank, const ExplainedMoves& explained) {
  const MoveCounts& moves = rank.moves;
  const auto& budget = plan.memory.host;
  const memory::LeastBytes& least = explained.least;
  const auto if_known = [&](Json value) { return least.is_known ? value : Json(nullptr); };
  Json j = {{"chunks", moves.chunks},
            {"step_to_device_bytes", moves.step_to_device},
            {"step_to_host_bytes", moves.step_to_host},
            {"host_peak_bytes", moves.host_peak},
            {"host_budget_bytes", budget ? Json(*budget) : Json(nullptr)},
            {"policies", Json::object()},
            {"least_bytes", if_known(least.bytes)},
            {"bound_bytes", if_known(least.bound)},
            {"gap", if_known(least.gap())},
            {"is_proven", if_known(least.is_proven)},
            {"regret_bytes", nullptr}};
  if (least.is_proven) j["regret_bytes"] = moves.step_to_device - least.bytes;
  for (const ExplainedMoves::Row& row : explained.rows) j["policies"][row.policy] = row.bytes;
  return j;
}

}  // namespace kuafu
