// SPDX-License-Identifier: Apache-2.0
//
// The second half of a step: from summed gradients to new weights.

#include <cmath>

#include <ATen/core/grad_mode.h>

#include "kuafu/base/trace.h"
#include "kuafu/engine/divergence.h"
#include "kuafu/engine/engine_state.h"
#include "kuafu/meter/allocator.h"

namespace kuafu {

/// One factor takes the scale out of the gradients and clips them, inside the update: it costs no
/// pass over them, and half precision loses nothing to it. An overflow of a scaled loss skips the
/// update on all ranks; sums carry it to whoever sees the sum, and the flag to everybody else.
void Engine::State::step_optimizer(double norm) {
  const bool has_overflow =
      scaler.is_active() && is_on_any_rank(!std::isfinite(norm), mesh, options.device);
  if (has_overflow) {
    if (watch) {
      watch->begin(ready, 1 / scaler.scale(), mesh);
      watch->skip();
    }
    optimizer->skip(ready, mesh);
  } else {
    const double factor = clip_factor(norm, plan.optimizer.clip) / scaler.scale();
    for (ParamShard& shard : ready) shard.grad_factor = factor;
    if (watch) watch->begin(ready, 1 / scaler.scale(), mesh);
    optimizer->step(ready, lr(), mesh);
  }
  scaler.step(has_overflow);
}

void Engine::State::watch_layers(std::vector<WatchedParam> all) {
  watch.emplace(std::move(all), plan.train.batch, options.device);
  optimizer->watch(&*watch);
  if (!has_noise(plan, map.schedule)) return;
  store->watch(
      {.own = [this](const Param& p, const Tensor& part,
                     const Axes& replicas) { watch->add_own(p, part, replicas, mesh); },
       .grown = [this](const Param& p, bool is_last) { watch->add_grown(p, is_last, mesh); }});
}

void Engine::State::take_figures() {
  if (!watch) return;
  const Tensor table = watch->finish(mesh);
  if (table.is_meta()) return;
  figures = figures_of(table, optimizer->has_ratios(), has_noise(plan, map.schedule));
}

double Engine::State::apply() {
  const double norm = global_grad_norm(ready, mesh, options.device) / scaler.scale();
  if (!scaler.is_active() && !std::isfinite(norm)) {  // before it reaches a weight
    throw Diverged(text("the gradient's norm is ", std::abs(norm), " at step ", steps_done + 1,
                        kDivergenceAdvice));
  }
  step_optimizer(norm);
  take_figures();
  store->publish();
  return norm;
}

double Engine::update() {
  State& s = *state_;
  const TracePhase phase("update");
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  const OnHostScope on_host(s.plan.memory.has_tiers());
  const double norm = s.push_or_apply();
  s.ready.clear();
  for (Param* p : params()) p->value.mutable_grad() = Tensor();
  ++s.steps_done;
  return norm;
}

}  // namespace kuafu
