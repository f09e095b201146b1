// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/fit.h"

#include <algorithm>

#include "kuafu/generation/meta_rank.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

/// Makes the forwards of a batch by one rank whose needs may be the largest. What is in use at most in
/// each moment of those that are alike; nothing without tiers.
std::vector<int64_t> forwards(Engine& engine, const BatchSize& size) {
  const Plan& plan = engine.plan();
  const int64_t sequence = plan.model.sequence, capacity = cache_capacity(plan, size);
  std::vector<int64_t> most;
  const auto one = [&](int64_t tokens, int64_t position, KeyValueCache* cache) {
    meta_forward(engine, tokens, position, cache);
    const std::vector<int64_t> seen = engine.seen_in_use();
    most.resize(seen.size());
    for (size_t i = 0; i < seen.size(); ++i) most[i] = std::max(most[i], seen[i]);
  };
  if (size.cache == Cache::kOff || !engine.why_no_cache().empty()) {
    // Where ranks share the positions, logits are of the rank that has theirs; prompts may be short.
    const int64_t step = std::max<int64_t>(1, sequence / (2 * num_ranks(plan)));
    for (int64_t position = 0; position < capacity; position += step) {
      one(sequence, position, nullptr);
    }
    one(sequence, capacity - 1, nullptr);
    return most;
  }
  KeyValueCache cache(capacity, size.cache == Cache::kHost ? engine.make_cache_home() : nullptr);
  meta_forward(engine, size.longest, size.longest - 1, &cache);
  if (size.longest == sequence || size.tokens == 1) return most;
  one(1, capacity - 1, &cache);
  // From the second on a home has begun to bring the first keys back when the forward begins.
  if (size.cache == Cache::kHost) one(1, capacity - 1, &cache);
  return most;
}

}  // namespace

int64_t cache_capacity(const Plan& plan, const BatchSize& size) {
  const int64_t sequence = plan.model.sequence;
  const bool is_short = size.tokens > 0 && size.tokens < sequence - size.longest;
  return is_short ? size.longest + size.tokens : sequence;
}

void require_fits(const Plan& plan, const Registries& registries, const BatchSize& size) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  SimulatedWorld world(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    on_meta_rank(plan, registries, world, rank, size.has_weights_on_disk,
                 [&](const MetaRank& rank) { forwards(rank.engine, size); });
  }
}

void foretell_forwards(Engine& engine, const Registries& registries, int rank,
                       const BatchSize& size) {
  foretell_alike(engine, registries, rank, size.has_weights_on_disk,
                 [&](Engine& of_meta) { return forwards(of_meta, size); });
}

}  // namespace kuafu
