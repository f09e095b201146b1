// SPDX-License-Identifier: Apache-2.0
#include "tests/states/tier_runs.h"

#include <algorithm>

#include "kuafu/comm/simulated.h"
#include "kuafu/device/arena.h"
#include "kuafu/engine/whole.h"
#include "tests/support/ranks.h"

namespace kuafu::tests::tiers {

void train_booked(const Plan& plan, Communicator& world, const Dataset& data, at::Device device,
                  Booked& out) {
  RankBook book = device_book(plan, world.rank(), device);
  const BookScope booked(&book);
  const Registries registries = idle_registries();
  Engine engine(plan, registries, world, data, {.device = device});
  for (int64_t step = 0; step < plan.train.steps; ++step) {
    out.trained.losses.push_back(engine.step().loss);
  }
  out.moves = engine.moves();
  out.uses = engine.uses();
  out.peak = book.peak();
  for (const ParamShard& s : engine.shards()) {
    out.gradients += static_cast<int64_t>(s.value.nbytes());
    out.states += 2 * static_cast<int64_t>(s.value.nbytes());
  }
  for (const SlotTensor& t : engine.optimizer().state().tensors) {
    out.states += static_cast<int64_t>(t.tensor.nbytes());
  }
  if (const device::Arena* arena = book.account()->arena()) {
    out.arena = arena->budget();
    out.high_water = arena->stats().high_water;
  }
  if (!device.is_cpu()) return;
  const BookScope not_booked(nullptr);
  for (Param* p : engine.params()) {
    out.trained.parameters[p->name] = gather_param(*p, engine.value(*p), engine.mesh()).clone();
  }
}

std::vector<Booked> on_threads(const Plan& plan) {
  std::vector<Booked> all(static_cast<size_t>(num_ranks(plan)));
  run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    train_booked(plan, world, *data_of(plan), at::kCPU, all[static_cast<size_t>(world.rank())]);
  });
  return all;
}

std::vector<Booked> simulated(const Plan& plan) {
  std::vector<Booked> all(static_cast<size_t>(num_ranks(plan)));
  SimulatedWorld world(static_cast<int>(num_ranks(plan)));
  for (size_t r = 0; r < all.size(); ++r) {
    const auto me = world.communicator(static_cast<int>(r));
    train_booked(plan, *me, *data_of(plan), at::kMeta, all[r]);
  }
  return all;
}

Plan plan_with(Overrides more) {
  Overrides all = {{"model.dtype", "f32"},
                   {"parallel.data.order", "fixed"},
                   {"model.layers", "3"},
                   {"train.batch", "6"},
                   {"train.validation_batches", "0"}};
  all.insert(all.end(), more.begin(), more.end());
  return small_plan(all);
}

Overrides replicas(int64_t n, int64_t stage) {
  return {{"parallel.data", text(n)}, {"parallel.zero", text(stage)}};
}

Overrides policy(const std::string& name, int64_t device, const Overrides& more) {
  Overrides all = {{"memory.policy", name}, {"memory.device", text(device)}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Overrides both(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<std::string> policies() {
  std::vector<std::string> names;
  for (const memory::PolicyKind& kind : memory::builtin_policy_kinds()) {
    if (kind.lacks.empty()) names.push_back(kind.name);
  }
  return names;
}

int64_t least_budget(const Overrides& base) {
  int64_t most = 0;
  for (const Booked& rank :
       on_threads(plan_with(both(base, {{"memory.policy", "host"}, {"memory.prefetch", "0"}})))) {
    most = std::max(most, rank.peak);
  }
  return most;
}

const std::vector<std::pair<std::string, Overrides>>& kinds() {
  static const std::vector<std::pair<std::string, Overrides>> all = {
      {"BERT", {{"model.kind", "bert"}}},
      {"LLaMA",
       {{"model.norm", "rms"},
        {"model.positions", "rotary"},
        {"model.mlp", "swiglu"},
        {"model.bias", "false"}}},
      {"micro-batches", {{"train.micro_batch", "2"}}},
      {"recomputed", {{"memory.recompute", "full"}, {"train.micro_batch", "3"}}},
      {"momentum", {{"optimizer.kind", "sgd"}, {"optimizer.momentum", "0.9"}}},
      {"LAMB", {{"optimizer.kind", "lamb"}}},
      {"Muon", {{"optimizer.kind", "muon"}}},
      {"bf16", {{"model.dtype", "bf16"}}},
      {"f16, scaled", {{"model.dtype", "f16"}, {"train.loss_scale_start", "1e9"}}},
      {"telemetry", {{"train.telemetry", "true"}}},
      {"any order", {{"parallel.data.order", "any"}}},
      {"tensor 1d", tests::keys::tensor("1d", "2")},
      {"tensor 1d-sp, ZeRO-3", both(tests::keys::tensor("1d-sp", "2"), replicas(2, 3))},
      {"experts, ZeRO-3", both(tests::keys::experts("2"), replicas(2, 3))},
      {"pipeline", {{"parallel.pipeline", "2"}, {"train.micro_batch", "2"}}},
      {"ring", tests::keys::sequence("ring", "2")}};
  return all;
}

}  // namespace kuafu::tests::tiers
