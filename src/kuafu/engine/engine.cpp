// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/engine.h"

#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/trace.h"
#include "kuafu/comm/turns.h"
#include "kuafu/engine/divergence.h"
#include "kuafu/engine/engine_state.h"
#include "kuafu/engine/measuring/validation.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/expert/routing.h"

namespace kuafu {

Engine::Engine(const Plan& plan, const Registries& registries, Communicator& world,
               const Dataset& dataset, const EngineOptions& options) {
  try {
    state_ = std::make_unique<State>(plan, registries, world, dataset, options);
  } catch (const ConfigError& e) {
    if (options.on_checked) options.on_checked(e.what());
    throw;
  }
  if (options.on_checked) options.on_checked("");
  // The number of threads that a product takes is this thread's own, and LibTorch sets it only at a
  // thread's first parallel loop: products before that were summed by all cores, in other bits.
  at::init_num_threads();
  state_->connect(registries);
  state_->foretell(registries);
  if (!plan.train.telemetry) return;
  std::vector<WatchedParam> all;
  for (const WholeParam& p : all_params()) all.push_back({p.param, p.is_mine});
  state_->watch_layers(std::move(all));
}

Engine::~Engine() = default;

void check_finite(double loss, int64_t step) {
  if (std::isfinite(loss)) return;
  throw Diverged(text("the loss is ", std::abs(loss), " at step ", step + 1, kDivergenceAdvice));
}

double Engine::forward_backward() {
  State& s = *state_;
  const CategoryScope scope(Category::kActivation);
  s.micro_batches.use_step(s.steps_done);
  if (s.flows) keep_flows();
  s.groups.begin(s.plan.num_micro_batches());
  if (s.watch) s.watch->begin_backward();
  const Tensor loss = s.run(s.training_row, true);
  ++s.steps_trained;
  s.ready = s.groups.finish();
  s.loss = s.reported_loss(loss);
  if (s.is_in_step()) check_finite(s.loss, s.steps_done);
  return s.loss;
}

double Engine::forward_backward_share(int64_t step, int64_t share, int64_t shares) {
  State& s = *state_;
  const int64_t num_micro = s.plan.num_micro_batches(), count = num_micro / shares;
  KUAFU_CHECK(s.mesh.num_ranks() == 1 && num_micro % shares == 0, "share ", share, " of ", shares,
              " of ", num_micro, " micro-batches on ", s.mesh.describe());
  const CategoryScope scope(Category::kActivation);
  pipeline::Row row;
  for (const pipeline::Action& a : s.training_row) {
    if (a.micro_batch / count == share) row.push_back(a);
  }
  s.micro_batches.use_step(step);
  s.groups.begin(count);
  const Tensor loss = s.run(row, true);
  s.ready = s.groups.finish();
  return read_scalar(loss.to(at::kDouble), "loss") * static_cast<double>(shares);
}

StepReport Engine::step(const OnGradients& on_gradients) {
  const TurnsScope turns(state_->can_take_turns() ? turns_of(state_->world) : std::nullopt);
  StepReport report;
  report.lr = state_->lr();
  report.loss_scale = state_->scaler.scale();
  const int64_t skipped = state_->scaler.state().skipped;
  const TracePhase phase("step");
  report.loss = forward_backward();
  if (on_gradients) on_gradients(state_->ready);
  report.grad_norm = update();
  report.is_skipped = state_->scaler.state().skipped > skipped;
  report.seconds_apart = take_seconds_apart();
  return report;
}

double Engine::validate() {
  State& s = *state_;
  settle();
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  Tensor total;
  for (int64_t batch = 0; batch < s.plan.train.validation_batches; ++batch) {
    if (batch > 0) ValidationWatch::ask();
    s.micro_batches.use_validation(s.steps_done, batch);
    const Tensor loss = s.run(s.validation_row, false);
    if (loss.defined()) total = total.defined() ? total + loss : loss;
  }
  return s.global_loss(total);
}

std::vector<std::string> Engine::layer_names() {
  std::vector<std::string> names;
  for (const WholeParam& p : all_params()) {
    for (std::string& name : kuafu::layer_names(*p.param)) names.push_back(std::move(name));
  }
  return names;
}

const LayerFigures* Engine::layer_figures() const {
  return state_->figures ? &*state_->figures : nullptr;
}

void Engine::keep_flows() {
  state_->flows = std::make_unique<KeptFlows>(state_->placement.context());
}

const KeptFlows* Engine::flows() const { return state_->flows.get(); }

void Engine::keep_routes() {
  for (const auto& block : state_->model.blocks) {
    if (RouterTally* tally = block->router_tally()) tally->keep_routes();
  }
}

std::vector<const RouterTally*> Engine::routers() const {
  std::vector<const RouterTally*> all;
  for (const auto& block : state_->model.blocks) {
    const RouterTally* tally = block->router_tally();
    if (tally != nullptr && !tally->is_empty()) all.push_back(tally);
  }
  return all;
}

int64_t Engine::steps_done() const { return state_->steps_done; }
const Plan& Engine::plan() const { return state_->plan; }
Tensor Engine::value(const Param& p) const {
  settle();
  return state_->store->value(p);
}
const Mesh& Engine::mesh() const { return state_->mesh; }
LossScaler& Engine::loss_scaler() { return state_->scaler; }

std::vector<Param*> Engine::params() { return state_->groups.params(); }

std::vector<WholeParam> Engine::all_params() {
  State& s = *state_;
  std::vector<WholeParam> all;
  for (size_t b = 0; b < s.model.blocks.size(); ++b) {
    const int owner = s.map.rank_of(b);
    for (const Param* p : s.model.blocks[b]->params())
      all.push_back({p, owner, owner == s.pipeline_rank});
  }
  return all;
}

std::vector<StateRow> Engine::states() const { return state_->store->rows(); }

std::optional<int64_t> Engine::loaded() const { return state_->store->loaded(); }

RankBook* Engine::home_book() const {
  if (const Tiers* tiers = state_->store->tiers()) return tiers->host();
  return device().is_cpu() ? current_book() : nullptr;
}

MoveCounts Engine::moves() const { return state_->store->moves(); }
memory::UseTrace Engine::uses() const { return state_->store->uses(); }

const StageMap& Engine::stages() const { return state_->map; }
bool Engine::trains() const { return state_->options.trains; }
at::Device Engine::device() const { return state_->options.device; }
void Engine::observe(pipeline::ActionObserver* observer) { state_->executor->observe(observer); }

}  // namespace kuafu
