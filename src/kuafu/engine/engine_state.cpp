// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/engine_state.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "kuafu/base/trace.h"
#include "kuafu/engine/measuring/foretold.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

/// My row of a timetable with its messages.
pipeline::Row row_of(const pipeline::Timetable& schedule, int64_t rank) {
  return schedule.size() == 1 ? schedule[0] : pipeline::lower(schedule)[static_cast<size_t>(rank)];
}

}  // namespace

namespace {

/// Whether the scratch of every choice of a plan shows on meta tensors: not of a plug-in's ops, and not of
/// plain ones where a number stands beside a tensor, which has 4 bytes where there is memory, in rules
/// of this build whose roundings nobody has derived.
bool has_known_scratch(const Plan& plan) {
  const Registries own = builtin_registries();
  const auto is_known = [&](const std::string& rule) {
    return own.optimizers.contains(rule) && own.updates.find(rule).rounding.per_element > 0;
  };
  return own.models.contains(plan.model.kind) && is_known(plan.optimizer.kind) &&
         own.tensor.contains(plan.parallel.tensor.mode) &&
         own.sequence.contains(plan.parallel.sequence.mode) &&
         std::all_of(plan.parallel.layers.begin(), plan.parallel.layers.end(),
                     [&](const LayerPlan& range) { return own.tensor.contains(range.mode); });
}

}  // namespace

double read_scalar(const Tensor& t, std::string_view name) {
  const double value = t.is_meta() ? 1.0 : t.item<double>();
  TraceRecorder* trace = current_trace();
  return trace == nullptr ? value : trace->oracle(name, value);
}

Engine::State::State(const Plan& p, const Registries& registries, Communicator& w, const Dataset& d,
                     const EngineOptions& o)
    : plan(p),
      options(o),
      world(w),
      placement(p, registries, w.rank(), o.device, o.wraps),
      mesh(placement.mesh()),
      model(placement.make_model()),
      map(map_stages(plan, registries, model.blocks.size(), w.rank())),
      pipeline_rank(static_cast<int>(mesh.coord("pipeline"))),
      groups(model, map, pipeline_rank, p.memory.recompute),
      micro_batches(plan, d, placement.order(), mesh.coord("data"), o.device),
      scaler(p) {
  groups.materialise(placement.params());
}

void Engine::State::connect(const Registries& registries) {
  placement.connect(world, options.ledger);
  make_states(registries);
  optimizer = make_optimizer(plan.optimizer, registries.optimizers, &store->slots());
  if (is_in_step() && options.trains) optimizer->begin(store->pieces());
  const StageTools tools{.model = model,
                         .groups = groups,
                         .micro_batches = micro_batches,
                         .device = options.device,
                         .away = store->activations(),
                         .recomputes = plan.memory.recompute == Recompute::kFull,
                         .slowdown = slowdown_of_step(),
                         .scaler = &scaler,
                         .flows = &flows};
  PipelineRank at{.pipeline = &mesh.comm("pipeline"),
                  .rank_of_stage = map.rank_of_stage,
                  .stages = {},
                  .device = options.device};
  for (int s = 0; s < map.num_stages(); ++s) {
    at.stages.push_back(nullptr);
    if (map.rank_of_stage[static_cast<size_t>(s)] != pipeline_rank) continue;
    stages.push_back(std::make_unique<Stage>(tools, map, s));
    at.stages.back() = stages.back().get();
    if (!options.wraps.stage) continue;
    wrapped.push_back(options.wraps.stage(*stages.back(), s));
    at.stages.back() = wrapped.back().get();
  }
  micro_batches.set_users(static_cast<int>(stages.size()));
  executor = std::make_unique<Executor>(std::move(at));
  training_row = row_of(map.schedule, pipeline_rank);
  validation_row = row_of(pipeline::forwards_of(map.schedule), pipeline_rank);
}

void Engine::State::foretell(const Registries& registries) {
  if (!plan.memory.has_tiers() || !options.is_foretold || !options.trains) return;
  if (current_book() == nullptr) return;
  if (registries.policies.find(plan.memory.policy).warms_up) return;
  std::vector<int64_t> in_use;
  for (const memory::Moment& m : foretold_uses(plan, registries, world.rank()).moments) {
    in_use.push_back(m.in_use);
  }
  // A skipped step updates nothing.
  store->tiers()->foretell(std::move(in_use), has_known_scratch(plan) && !plan.has_dynamic_scale());
}

std::function<double()> Engine::State::slowdown_of_step() const {
  if (!options.slowdown) return {};
  return [this] { return options.slowdown(steps_done); };
}

Tensor Engine::State::run(const pipeline::Row& row, bool is_training) {
  for (const auto& stage : stages) stage->set_training(is_training);
  groups.expect(row);
  executor->run(row);
  Tensor loss;
  for (const auto& stage : stages) {
    const Tensor part = stage->take_loss();
    if (part.defined()) loss = part;
  }
  return loss;
}

double Engine::State::global_loss(const Tensor& partial) const {
  const Tensor sum = partial.defined()
                         ? partial.detach().to(at::kDouble)
                         : at::zeros({}, at::TensorOptions(at::kDouble).device(options.device));
  raw::all_reduce(sum, mesh.comm("data"));
  for (const Axis& axis : mesh.axes()) {
    const auto& split = model.loss_axes.axes;
    const bool is_split = std::find(split.begin(), split.end(), axis.name) != split.end();
    if (is_split) raw::all_reduce(sum, mesh.comm(axis.name));
  }
  raw::all_reduce(sum, mesh.comm("pipeline"));
  return read_scalar(sum, "loss");
}

double Engine::State::own_loss(const Tensor& partial) const {
  return read_scalar(partial.to(at::kDouble), "loss") *
         static_cast<double>(plan.parallel.data.size);
}
double Engine::State::lr() const {
  return learning_rate(plan.optimizer, steps_done - scaler.state().skipped, plan.schedule_steps(),
                       plan.train.batch);
}

}  // namespace kuafu
