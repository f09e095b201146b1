// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/placing/placement.h"
#include "kuafu/generation/generate.h"

namespace kuafu {

/// What the prompts of a batch need, whatever they say.
struct BatchSize {
  int64_t longest = 1;  ///< tokens of the longest prompt
  int64_t tokens = 0;   ///< to be generated of each, as Generation::tokens
  Cache cache = Cache::kWherePossible;
  bool has_weights_on_disk = false;  ///< EngineOptions::has_parameters_on_disk
};

/// Makes the forwards of one batch of the plan's train.batch prompts on meta tensors, rank after rank:
/// that of the prompts, and one behind the cache where there is one. Throws OutOfMemory of the first rank
/// whose memory.device does not hold them; logits that come to rank 0 are counted as if one other rank
/// had sent all of them.
/// @pre the plan is one of plan_of_generation()
void require_fits(const Plan& plan, const Registries& registries, const BatchSize& size);

/// foretell_alike() of the forwards behind the first one of a batch. @pre as require_fits()
void foretell_forwards(Engine& engine, const Registries& registries, int rank,
                       const BatchSize& size);

/// Positions of each sample that a cache has room for.
int64_t cache_capacity(const Plan& plan, const BatchSize& size);

}  // namespace kuafu
