// SPDX-License-Identifier: Apache-2.0
//
// What an engine does otherwise where replicas go on by themselves: the one place of it that asks.

#include "kuafu/base/errors.h"
#include "kuafu/engine/engine_state.h"
#include "kuafu/engine/requests.h"
#include "kuafu/parallel/reduce/reduce.h"

namespace kuafu {

void Engine::State::make_states(const Registries& registries) {
  if (!plan.parallel.data.is_stale()) {
    KUAFU_REQUIRE(options.push_script.empty(),
                  "a script orders the pushes of parallel.data.staleness > 0 only");
    store = make_store(plan, mesh, placement.params(), registries.policies);
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

double Engine::State::push_or_apply() { return stale ? stale->push(ready) : apply(); }

StaleReplica* Engine::stale() { return state_->stale.get(); }

bool Engine::is_in_step() const { return state_->is_in_step(); }

void Engine::settle() const {
  if (state_->stale) state_->stale->settle();
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
  check_has_shards(plan());
  return state_->store->pieces();
}

void check_has_shards(const Plan& plan) {
  KUAFU_REQUIRE(!plan.parallel.data.is_stale(),
                "--checkpoint with parallel.data.staleness = ", plan.parallel.data.staleness,
                ": a checkpoint would need the servers' optimizers and the versions that workers "
                "have read; nearest: staleness = 0, or no --checkpoint");
}

bool can_be_asked(const Plan& plan) { return !plan.parallel.data.is_stale(); }

void require_asked(const Plan& plan, const std::string& option, const std::string& instead) {
  KUAFU_REQUIRE(can_be_asked(plan), option,
                " with parallel.data.staleness = ", plan.parallel.data.staleness,
                ": workers are in different steps, so that no step ends for all of them; nearest: "
                "staleness = 0, or ",
                instead);
}

}  // namespace kuafu
