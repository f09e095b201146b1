// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/proof/whole_state.h"

#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/checkpoint/boxes.h"
#include "kuafu/engine/proof/box_gathering.h"
#include "kuafu/engine/saving/held_elements.h"
#include "kuafu/parallel/expert/routing.h"

namespace kuafu {
namespace {

void add_boxes(std::vector<Box>& all, const std::string& name, const ParamShard& shard,
               const Tensor& tensor, const Mesh& mesh, bool is_witness = false) {
  const HeldElements held = held_by(shard, mesh);
  for (size_t b = 0; b < held.boxes.size(); ++b) {
    if (is_empty(held.inside[b])) continue;
    all.push_back({name, shard.param->global, held.inside[b], box_of(tensor, held, b).contiguous(),
                   is_witness});
  }
}

}  // namespace

WholeState whole_state(Engine& engine, Communicator& world) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = engine.mesh();
  const std::vector<ParamShard> shards = engine.shards();
  const OptimizerState state = engine.optimizer().state();
  std::vector<Box> mine;
  std::set<const void*> held;
  for (const ParamShard& s : shards) {
    add_boxes(mine, "\n" + s.param->name, s, s.value, mesh);
    held.insert(s.value.const_data_ptr());
  }
  for (const SavedTensor& t : saved_tensors(shards, state, engine.plan().optimizer.kind)) {
    if (t.slot.empty()) continue;
    const ParamShard& shard = shards[t.shard];
    Tensor slot = t.tensor;
    if (engine.optimizer().has_slots_away() && t.slot != "master") {
      engine.optimizer().bring(t.shard, RuleSlots::Use::kRead);
      slot = slot.clone();
    }
    add_boxes(mine, t.slot + "\n" + shard.param->name, shard, slot, mesh);
  }
  engine.optimizer().rest();
  const Residency residency = residency_of(engine.plan());
  for (const Param* p : engine.params()) {  // what forward reads, where it is not what is updated
    if (residency.parameters.portion == Portion::kPart && p->value.storage().nbytes() == 0)
      continue;
    const Tensor value = residency.parameters.tier == Tier::kDevice ? p->value : engine.value(*p);
    const bool is_piece =
        residency.slots.portion == Portion::kWhole && held.contains(value.const_data_ptr());
    if (is_piece) continue;
    add_boxes(mine, "\n" + p->name, {.value = value, .grad = {}, .param = p, .split_axes = {}},
              value, mesh, true);
  }
  GatheredBoxes all = gather_boxes(std::move(mine), Copies::kAreCompared, world, engine.device());
  WholeState whole;
  whole.num_steps = state.num_steps;
  for (auto& [name, tensor] : all.tensors) {
    const size_t cut = name.find('\n');
    const std::string slot = name.substr(0, cut), param = name.substr(cut + 1);
    (slot.empty() ? whole.values : whole.slots[slot])[param] = std::move(tensor);
  }
  whole.disagreement = all.disagreement;
  return whole;
}

WholeGradients whole_gradients(std::span<const ParamShard> ready, double factor, Engine& engine,
                               Communicator& world) {
  const at::NoGradGuard no_grad;
  std::vector<Box> mine;
  for (const ParamShard& s : ready) {
    bring_gradient(s);
    const Tensor gradient = s.gradient_file == nullptr ? s.grad : s.grad.clone();
    add_boxes(mine, s.param->name, s, gradient, engine.mesh());
  }
  GatheredBoxes all = gather_boxes(std::move(mine), Copies::kAnyIsGood, world, engine.device());
  for (auto& [name, gradient] : all.tensors) gradient = gradient.to(at::kDouble).mul_(factor);
  return {.tensors = std::move(all.tensors), .disagreement = std::move(all.disagreement)};
}

WholeRoutes whole_routes(Engine& engine, Communicator& world) {
  const at::NoGradGuard no_grad;
  std::vector<Box> mine;
  for (const RouterTally* router : engine.routers()) {
    for (const RoutedSamples& r : router->routes()) {
      const auto add = [&](const std::string& name, const Tensor& t) {
        Shape global = shape_of(t), offset(global.size(), 0);
        const Shape extent = global;
        global[0] = engine.plan().train.batch;
        offset[0] = r.first;
        if (t.numel() > 0) mine.push_back({name, global, {offset, extent}, t.contiguous()});
      };
      add(router->name(), r.slots);
      add(router->name() + ".choices", r.choices);
    }
  }
  GatheredBoxes all = gather_boxes(std::move(mine), Copies::kAreCompared, world, engine.device());
  return {.tensors = std::move(all.tensors), .disagreement = std::move(all.disagreement)};
}

oracle::BlockFlows whole_flows(Engine& engine, Communicator& world) {
  const at::NoGradGuard no_grad;
  const Plan& plan = engine.plan();
  const Shape global = {plan.train.batch, plan.model.sequence, plan.model.hidden};
  std::vector<Box> mine;
  for (const KeptFlows::FlowPiece& p : engine.flows()->pieces()) {
    const std::string name = text(p.block, "\n", static_cast<int>(p.boundary));
    mine.push_back({name, global, p.place, p.data.contiguous()});
  }
  const GatheredBoxes boxes =
      gather_boxes(std::move(mine), Copies::kAnyIsGood, world, engine.device());
  oracle::BlockFlows all;
  for (const auto& [name, tensor] : boxes.tensors) {
    oracle::BlockFlow& flow = all[name.substr(0, name.find('\n'))];
    switch (static_cast<Boundary>(name.back() - '0')) {
      case Boundary::kInput:
        flow.input = tensor;
        break;
      case Boundary::kOutput:
        flow.output = tensor;
        break;
      case Boundary::kOutputGradient:
        flow.output_gradient = tensor;
        break;
      case Boundary::kInputGradient:
        flow.input_gradient = tensor;
        break;
    }
  }
  KUAFU_REQUIRE(boxes.disagreement.empty(), "block by block: ", boxes.disagreement);
  return all;
}

uint64_t hash_of(Engine& engine) {
  uint64_t hash = 0;
  for (const ParamShard& s : engine.shards()) hash = hash_of_tensor(s.value, hash);
  for (const SlotTensor& t : engine.optimizer().state().tensors) {
    engine.optimizer().bring(t.shard, RuleSlots::Use::kRead);
    hash = hash_of_tensor(t.tensor, hash);
  }
  engine.optimizer().rest();
  return hash;
}

}  // namespace kuafu
