// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/meta_rank.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "kuafu/base/trace.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/meter/book.h"
#include "kuafu/states/tiers.h"

namespace kuafu {

void on_meta_rank(const Plan& plan, const Registries& registries, SimulatedWorld& world, int rank,
                  bool has_parameters_on_disk,
                  const std::function<void(const MetaRank& rank)>& use) {
  RankBook book = device_book(plan, rank, at::kMeta);
  const BookScope booked(&book);
  const auto me = world.communicator(rank);
  const NoData none(plan.model);
  Engine engine(
      plan, registries, *me, none,
      {.device = at::kMeta, .trains = false, .has_parameters_on_disk = has_parameters_on_disk});
  use({engine, book, *me});
}

void meta_forward(Engine& engine, int64_t tokens, int64_t position, KeyValueCache* cache) {
  const int64_t samples = engine.plan().train.batch;
  const Tokens given{.inputs = std::vector<int64_t>(static_cast<size_t>(samples * tokens)),
                     .targets = {},
                     .samples = samples,
                     .sequence = tokens};
  const Tensor logits =
      engine.logits(given, std::vector<int64_t>(static_cast<size_t>(samples), position), cache);
  if (logits.defined()) const Tensor chosen_from = logits.to(at::kDouble);
}

void foretell_alike(Engine& engine, const Registries& registries, int rank,
                    bool has_parameters_on_disk,
                    const std::function<std::vector<int64_t>(Engine& of_meta)>& in_use) {
  if (!engine.plan().memory.has_tiers() || current_book() == nullptr) return;
  Plan plan = engine.plan();
  plan.memory.policy = "host";
  plan.memory.prefetch = 0;
  plan.memory.device.reset();  // what fits is decided by what really comes
  const TraceScope untraced(nullptr);
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  try {
    on_meta_rank(plan, registries, world, rank, has_parameters_on_disk,
                 [&](const MetaRank& alone) { engine.foretell_alike(in_use(alone.engine)); });
  } catch (const c10::Error&) {  // of a plug-in: meta tensors have shapes and no numbers
  }
}

}  // namespace kuafu
