// SPDX-License-Identifier: Apache-2.0
//
// What an engine does otherwise where replicas go on by themselves: the one place of it that asks.

#include "kuafu/base/errors.h"
#include "kuafu/engine/engine_state.h"
#include "kuafu/parallel/reduce/reduce.h"

namespace kuafu {

void Engine::State::make_states(const Registries& registries) {
  if (!plan.parallel.data.is_stale()) {
    KUAFU_REQUIRE(options.push_script.empty(),
                  "a script orders the pushes of parallel.data.staleness > 0 only");
    store = make_store(plan, mesh, placement.params(), registries.policies,
                       options.has_parameters_on_disk);
    return groups.connect(mesh, *store);
  }
  stale = std::make_unique<StaleReplica>(
      mesh, StaleOptions{plan, options.push_script, registries.optimizers});
  store = stale->make_store(placement.params());
  groups.connect(mesh, *store);
  stale->attach(groups.params());
  groups.between_blocks([this] { stale->serve(); });
}

bool Engine::State::is_in_step() const { return stale == nullptr; }

double Engine::State::reported_loss(const Tensor& partial) const {
  return stale ? own_loss(partial) : global_loss(partial);
}

double Engine::State::push_or_apply() { return stale ? stale->push(ready, loss) : apply(); }

StaleReplica* Engine::stale() { return state_->stale.get(); }

bool Engine::is_in_step() const { return state_->is_in_step(); }

void Engine::settle() const {
  if (state_->stale) state_->stale->settle();
}

bool Engine::meets(bool wants, bool is_due) {
  return !state_->stale || state_->stale->meets(wants, is_due);
}

std::vector<PushOrder> Engine::pushes() {
  return state_->stale ? state_->stale->pushes() : std::vector<PushOrder>();
}

std::vector<double> Engine::means(std::vector<double> reported) {
  return state_->stale ? state_->stale->means(std::move(reported)) : reported;
}

double Engine::take_seconds_apart() {
  return state_->stale ? state_->stale->take_seconds_apart() : 0;
}

Tensor Engine::gradient(const Param& p) const {
  if (state_->stale) return state_->stale->gradient(p);
  const Tensor scaled = state_->store->gradient(p);
  if (!scaled.defined() || !state_->scaler.is_active()) return scaled;
  return scaled / state_->scaler.scale();
}

std::vector<ParamShard> Engine::shards() const {
  return state_->stale ? state_->stale->shards() : state_->store->pieces();
}

Optimizer& Engine::optimizer() {
  Optimizer* served = state_->stale ? state_->stale->optimizer() : nullptr;
  return served != nullptr ? *served : *state_->optimizer;
}

void Engine::go_on_from(int64_t steps_done) {
  state_->store->publish();
  if (state_->stale) state_->stale->go_on_from(steps_done);
  state_->steps_done = steps_done;
}

}  // namespace kuafu
