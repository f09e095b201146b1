// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/model_parts.h"

#include <numeric>
#include <string>

#include "kuafu/base/trace.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/dataset/no_data.h"
#include "kuafu/engine/engine.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

/// What a rank keeps between steps.
PartCounts held_by(Engine& engine) {
  PartCounts held;
  if (residency_of(engine.plan()).parameters.portion == Portion::kPart) {
    for (const ParamShard& s : engine.shards()) held.add(s.param->name, s.value.numel());
    return held;
  }
  for (const Param* p : engine.params()) held.add(p->name, p->value.numel());
  return held;
}

}  // namespace

std::string_view to_string(PartKind kind) {
  constexpr std::string_view kNames[kNumPartKinds] = {"embedding", "attention", "mlp",  "experts",
                                                      "norms",     "head",      "other"};
  return kNames[static_cast<size_t>(kind)];
}

PartKind part_of(std::string_view parameter) {
  const std::string dotted = "." + std::string(parameter) + ".";
  const auto has = [&](const char* words) { return dotted.find(words) != std::string::npos; };
  if (has(".norm")) return PartKind::kNorms;
  if (dotted.starts_with(".embedding.")) return PartKind::kEmbedding;
  if (dotted.starts_with(".head.")) return PartKind::kHead;
  if (has(".attn.")) return PartKind::kAttention;
  if (has(".moe.")) return PartKind::kExperts;
  if (has(".mlp.") || has(".up.") || has(".down.")) return PartKind::kMlp;
  return PartKind::kOther;
}

int64_t PartCounts::total() const {
  return std::accumulate(by_kind.begin(), by_kind.end(), int64_t{0});
}

void PartCounts::add(std::string_view parameter, int64_t elements) {
  by_kind[static_cast<size_t>(part_of(parameter))] += elements;
}

ModelParts model_parts(const Plan& of, const Registries& registries) {
  Plan plan = of;
  plan.parallel.data.staleness = 0;     // who waits for whom is no matter here
  const BookScope not_booked(nullptr);  // a look ahead, no part of the program
  const TraceScope not_traced(nullptr);
  const auto ranks = static_cast<int>(num_ranks(plan));
  const auto stages = static_cast<int>(plan.parallel.pipeline.size);
  SimulatedWorld world(ranks);
  const NoData data(plan.model);
  ModelParts parts;
  for (int stage = 0; stage < stages; ++stage) {  // "pipeline" is the outermost axis
    const int rank = ranks / stages * stage;
    const auto me = world.communicator(rank);
    Engine engine(plan, registries, *me, data, {.device = at::kMeta});
    if (stage == 0) {
      for (const WholeParam& w : engine.all_params()) {
        int64_t elements = 1;
        for (const int64_t extent : w.param->global) elements *= extent;
        parts.whole.add(w.param->name, elements);
      }
    }
    for (StateRow& row : engine.states()) parts.states.push_back(std::move(row));
    const PartCounts held = held_by(engine);
    if (held.total() <= parts.fullest.total()) continue;
    parts.fullest = held;
    parts.rank = rank;
  }
  return parts;
}

}  // namespace kuafu
