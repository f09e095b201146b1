// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/fit.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "kuafu/base/trace.h"
#include "kuafu/generation/meta_rank.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

/// Those of a batch, by one rank: first and last behind it.
void forwards(Engine& engine, const BatchSize& size) {
  const int64_t sequence = engine.plan().model.sequence;
  if (size.cache == Cache::kOff || !engine.why_no_cache().empty())
    return meta_forward(engine, sequence, size.longest - 1, nullptr);
  const int64_t capacity = cache_capacity(engine.plan(), size);
  KeyValueCache cache(capacity, size.cache == Cache::kHost ? engine.make_cache_home() : nullptr);
  meta_forward(engine, size.longest, size.longest - 1, &cache);
  if (size.longest == sequence || size.tokens == 1) return;
  meta_forward(engine, 1, capacity - 1, &cache);
  // From the second on a home has begun to bring the first keys back when the forward begins.
  if (size.cache == Cache::kHost) meta_forward(engine, 1, capacity - 1, &cache);
}

}  // namespace

int64_t cache_capacity(const Plan& plan, const BatchSize& size) {
  const int64_t sequence = plan.model.sequence;
  return size.tokens == 0 ? sequence : std::min(size.longest + size.tokens, sequence);
}

void require_fits(const Plan& plan, const Registries& registries, const BatchSize& size) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  SimulatedWorld world(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    on_meta_rank(plan, registries, world, rank,
                 [&](Engine& engine, RankBook&) { forwards(engine, size); });
  }
}

void foretell_forwards(Engine& engine, const Registries& registries, int rank,
                       const BatchSize& size) {
  if (!engine.plan().memory.has_tiers() || current_book() == nullptr) return;
  Plan plan = engine.plan();
  plan.memory.policy = "host";
  plan.memory.prefetch = 0;
  plan.memory.device.reset();  // what fits is decided by what really comes
  const TraceScope untraced(nullptr);
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  try {
    on_meta_rank(plan, registries, world, rank, [&](Engine& alone, RankBook&) {
      forwards(alone, size);
      engine.foretell_alike(alone.seen_in_use());
    });
  } catch (const c10::Error&) {  // of a plug-in: meta tensors have shapes and no numbers
  }
}

}  // namespace kuafu
