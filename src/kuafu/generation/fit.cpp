// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/fit.h"

#include <algorithm>
#include <optional>

#include "kuafu/comm/simulated.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/meter/book.h"
#include "kuafu/model/key_value_cache.h"
#include "kuafu/states/tiers.h"

namespace kuafu {
namespace {

void forward(Engine& engine, int64_t tokens, int64_t position, KeyValueCache* cache) {
  const int64_t samples = engine.plan().train.batch;
  const Tokens given{.inputs = std::vector<int64_t>(static_cast<size_t>(samples * tokens)),
                     .targets = {},
                     .samples = samples,
                     .sequence = tokens};
  engine.logits(given, std::vector<int64_t>(static_cast<size_t>(samples), position), cache);
}

}  // namespace

int64_t cache_capacity(const Plan& plan, const BatchSize& size) {
  const int64_t sequence = plan.model.sequence;
  return size.tokens == 0 ? sequence : std::min(size.longest + size.tokens, sequence);
}

void require_fits(const Plan& plan, const Registries& registries, const BatchSize& size) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  SimulatedWorld world(ranks);
  const NoData none(plan.model);
  for (int rank = 0; rank < ranks; ++rank) {
    RankBook book = device_book(plan, rank, at::kMeta);
    const BookScope booked(&book);
    const auto me = world.communicator(rank);
    Engine engine(plan, registries, *me, none, {.device = at::kMeta, .is_foretold = false});
    if (size.cache == Cache::kOff || !engine.why_no_cache().empty()) {
      forward(engine, plan.model.sequence, size.longest - 1, nullptr);
      continue;
    }
    KeyValueCache cache(cache_capacity(plan, size));
    forward(engine, size.longest, size.longest - 1, &cache);
    if (size.longest < plan.model.sequence) forward(engine, 1, size.longest, &cache);
  }
}

}  // namespace kuafu
