// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kuafu/comm/simulated.h"
#include "kuafu/engine/engine.h"
#include "kuafu/model/key_value_cache.h"

namespace kuafu {

/// One rank of a plan on meta tensors, with the book of its device and its world; where weights lie, see
/// EngineOptions::has_parameters_on_disk.
struct MetaRank {
  Engine& engine;
  RankBook& book;
  Communicator& world;
};
void on_meta_rank(const Plan& plan, const Registries& registries, SimulatedWorld& world, int rank,
                  bool has_parameters_on_disk,
                  const std::function<void(const MetaRank& rank)>& use);

/// A forward of so many tokens of each sample, whose logits at `position` are wanted, up to what is
/// chosen from.
void meta_forward(Engine& engine, int64_t tokens, int64_t position, KeyValueCache* cache);

/// Lets the plan's policy of tiers play forwards that are alike, whose weights then come ahead of their
/// use, or stay: what will be in use beside them is what `in_use` says of forwards by the same rank on meta
/// tensors (Engine::seen_in_use()). Does nothing without tiers, and where nobody keeps books.
void foretell_alike(Engine& engine, const Registries& registries, int rank,
                    bool has_parameters_on_disk,
                    const std::function<std::vector<int64_t>(Engine& of_meta)>& in_use);

}  // namespace kuafu
