// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/trace.h"
#include "kuafu/comm/turns.h"
#include "kuafu/engine/stage.h"
#include "kuafu/engine/validation.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/optim/layer_watch.h"
#include "kuafu/parallel/expert/routing.h"
#include "kuafu/parallel/pipeline/analysis.h"
#include "kuafu/parallel/pipeline/choose.h"
#include "kuafu/parallel/reduce/reduce.h"
#include "kuafu/parallel/stale/replicas.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

/// A scalar of the device as a number. Meta tensors have none: the simulated world's oracle is 1.
double read_scalar(const Tensor& t, std::string_view name) {
  const double value = t.is_meta() ? 1.0 : t.item<double>();
  TraceRecorder* trace = current_trace();
  return trace == nullptr ? value : trace->oracle(name, value);
}

/// My row of a timetable with its messages.
pipeline::Row row_of(const pipeline::Timetable& schedule, int64_t rank) {
  return schedule.size() == 1 ? schedule[0] : pipeline::lower(schedule)[static_cast<size_t>(rank)];
}

}  // namespace

struct Engine::State {
  State(const Plan& p, const Registries& registries, Communicator& w, const Dataset& d,
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

  void connect(const Registries& registries) {
    placement.connect(world, options.ledger);
    make_states(registries);
    optimizer = make_optimizer(plan.optimizer, registries.optimizers, &store->slots());
    if (!stale) optimizer->begin(store->pieces());
    const StageTools tools{.model = model,
                           .groups = groups,
                           .micro_batches = micro_batches,
                           .device = options.device,
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

  /// What this rank holds, and, where replicas go on by themselves, who they push to.
  void make_states(const Registries& registries) {
    if (plan.parallel.data.staleness == 0) {
      KUAFU_REQUIRE(options.push_script.empty(),
                    "a script orders the pushes of parallel.data.staleness > 0 only");
      store = make_store(plan, mesh, placement.params());
      return groups.connect(mesh, *store);
    }
    stale = std::make_unique<StaleReplica>(
        mesh, StaleOptions{plan, options.push_script, registries.optimizers});
    store = stale->make_store(placement.params());
    groups.connect(mesh, *store);
    stale->attach(groups.params());
    groups.between_blocks([this] { stale->serve(); });
  }

  std::function<double()> slowdown_of_step() const {
    if (!options.slowdown) return {};
    return [this] { return options.slowdown(steps_done); };
  }

  /// Runs a row; the loss of its micro-batches on the last stage, zero on others.
  Tensor run(const pipeline::Row& row, bool is_training) {
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

  /// A local loss summed over the ranks that hold different tokens, axis by axis; then from the
  /// last stage to all.
  double global_loss(const Tensor& partial) const {
    const Tensor sum = partial.defined()
                           ? partial.detach().to(at::kDouble)
                           : at::zeros({}, at::TensorOptions(at::kDouble).device(options.device));
    raw::all_reduce(sum, mesh.comm("data"));
    for (const Axis& axis : mesh.axes()) {
      const auto& split = model.loss_axes;
      const bool is_split = std::find(split.begin(), split.end(), axis.name) != split.end();
      if (is_split) raw::all_reduce(sum, mesh.comm(axis.name));
    }
    raw::all_reduce(sum, mesh.comm("pipeline"));
    return read_scalar(sum, "loss");
  }

  /// Whether nothing in a step waits but for other ranks, in calls of the world.
  bool can_take_turns() const { return options.device.is_cpu() && !options.slowdown && !stale; }

  /// Mean over the samples of this replica, which is one rank.
  double own_loss(const Tensor& partial) const {
    return read_scalar(partial.to(at::kDouble), "loss") *
           static_cast<double>(plan.parallel.data.size);
  }
  double lr() const {  // a skipped step is none of the schedule's
    return learning_rate(plan.optimizer, steps_done - scaler.state().skipped, plan.schedule_steps(),
                         plan.train.batch);
  }
  double apply();
  void step_optimizer(double norm);
  void watch_layers(std::vector<WatchedParam> all);
  void take_figures();

  const Plan plan;
  EngineOptions options;
  Communicator& world;
  Placement placement;
  Mesh& mesh;
  Model model;  // the whole; what other ranks hold stays on meta
  const StageMap map;
  const int pipeline_rank;  // my rank in the pipeline
  BlockGroups groups;
  MicroBatches micro_batches;
  LossScaler scaler;
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<std::unique_ptr<StageWork>> wrapped;
  std::unique_ptr<Executor> executor;
  pipeline::Row training_row, validation_row;
  std::unique_ptr<StaleReplica> stale;  // null where replicas are in step
  std::unique_ptr<Store> store;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<LayerWatch> watch;  // with train.telemetry
  std::optional<LayerFigures> figures;
  std::vector<ParamShard> ready;     // between forward_backward and update
  std::unique_ptr<KeptFlows> flows;  // of the last training step, where they are asked for
  int64_t steps_done = 0;
  int64_t steps_trained = 0;  // by this engine: what the routers tallied
};

Engine::Engine(const Plan& plan, const Registries& registries, Communicator& world,
               const Dataset& dataset, const EngineOptions& options)
    : state_(std::make_unique<State>(plan, registries, world, dataset, options)) {
  // The number of threads that a product takes is this thread's own, and LibTorch sets it only at a
  // thread's first parallel loop: products before that were summed by all cores, in other bits.
  at::init_num_threads();
  state_->connect(registries);
  if (!plan.train.telemetry) return;
  std::vector<WatchedParam> all;
  for (const WholeParam& p : all_params()) all.push_back({p.param, p.is_mine});
  state_->watch_layers(std::move(all));
}

Engine::~Engine() = default;

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
  const double mean = s.stale ? s.own_loss(loss) : s.global_loss(loss);
  if (!std::isfinite(mean)) {
    throw Diverged(text("the loss is ", std::abs(mean), " at step ", s.steps_done + 1,
                        ": training diverged; lower optimizer.lr or raise optimizer.warmup"));
  }
  return mean;
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

/// One factor takes the scale out of the gradients and clips them, inside the update: in half
/// precision a division would lose what the scale has saved. An overflow skips the update on all
/// ranks; sums carry it to whoever sees the sum, and the flag to everybody else.
void Engine::State::step_optimizer(double norm) {
  if (!scaler.is_active()) {
    if (watch) watch->begin(ready, 1, mesh);
    clip_gradients(ready, norm, plan.optimizer.clip);
    optimizer->step(ready, lr(), mesh);
    return;
  }
  const bool has_overflow = is_on_any_rank(!std::isfinite(norm), mesh, options.device);
  if (!has_overflow) {
    const double factor = clip_factor(norm, plan.optimizer.clip) / scaler.scale();
    for (ParamShard& shard : ready) shard.grad_factor = factor;
    if (watch) watch->begin(ready, 1 / scaler.scale(), mesh);
    optimizer->step(ready, lr(), mesh);
  } else {
    if (watch) watch->begin_skipped(ready, mesh);
    optimizer->skip(ready, mesh);
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
  const double norm = s.stale ? s.stale->push(s.ready) : s.apply();
  s.ready.clear();
  for (Param* p : params()) p->value.mutable_grad() = Tensor();
  ++s.steps_done;
  return norm;
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
  return report;
}

double Engine::validate() {
  State& s = *state_;
  if (s.stale) s.stale->settle();
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

void ExpertCounts::add(const ExpertCounts& other) {
  tokens.resize(other.tokens.size());
  choices.resize(other.choices.size());
  for (size_t e = 0; e < tokens.size(); ++e) {
    tokens[e] += other.tokens[e];
    choices[e] += other.choices[e];
  }
  dropped += other.dropped;
  made += other.made;
}

std::vector<ExpertLoad> Engine::expert_loads() const {
  const State& s = *state_;
  const at::NoGradGuard no_grad;
  std::vector<ExpertLoad> loads;
  for (size_t b = 0; b < s.model.blocks.size(); ++b) {
    ModelBlock& block = *s.model.blocks[b];
    const RouterTally* tally = block.router_tally();
    if (tally == nullptr || s.options.device.is_meta() || s.steps_trained == 0) continue;
    const int owner = s.map.rank_of(b);
    const int64_t experts = s.plan.model.experts, width = 2 * experts + 2;
    Tensor sum =
        at::zeros({s.steps_trained, width}, at::TensorOptions(at::kLong).device(s.options.device));
    if (owner == s.pipeline_rank) {
      sum.copy_(tally->counts());
      raw::all_reduce(sum, s.mesh.comm("data"));
      for (const std::string& axis : tally->sample_axes()) {
        raw::all_reduce(sum, s.mesh.comm(axis));
      }
    }
    if (s.mesh.size("pipeline") > 1) sum = raw::broadcast(sum, s.mesh.comm("pipeline"), owner);
    const Tensor host = sum.cpu();
    ExpertLoad& load = loads.emplace_back();
    load.block = block.name();
    for (int64_t step = 0; step < s.steps_trained; ++step) {
      const int64_t* n = host.const_data_ptr<int64_t>() + step * width;
      load.steps.push_back({.tokens = {n, n + experts},
                            .choices = {n + experts, n + 2 * experts},
                            .dropped = n[2 * experts],
                            .made = n[2 * experts + 1]});
      load.add(load.steps.back());
    }
  }
  return loads;
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

StaleReplica* Engine::stale() { return state_->stale.get(); }

int64_t Engine::steps_done() const { return state_->steps_done; }
const Plan& Engine::plan() const { return state_->plan; }
Tensor Engine::value(const Param& p) const {
  if (state_->stale) state_->stale->settle();
  return state_->store->value(p);
}
Tensor Engine::gradient(const Param& p) const {
  if (state_->stale) return state_->stale->gradient(p);
  const Tensor scaled = state_->store->gradient(p);
  if (!scaled.defined() || !state_->scaler.is_active()) return scaled;
  return scaled / state_->scaler.scale();
}
const Mesh& Engine::mesh() const { return state_->mesh; }
std::vector<ParamShard> Engine::shards() const {
  KUAFU_REQUIRE(!state_->stale,
                "parallel.data.staleness: a checkpoint would need the servers' optimizers and the "
                "versions that workers have read; nearest: staleness = 0, or no checkpoint");
  return state_->store->pieces();
}
Optimizer& Engine::optimizer() { return *state_->optimizer; }
LossScaler& Engine::loss_scaler() { return state_->scaler; }

void Engine::go_on_from(int64_t steps_done) {
  state_->store->publish();
  state_->steps_done = steps_done;
}

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

const StageMap& Engine::stages() const { return state_->map; }
at::Device Engine::device() const { return state_->options.device; }
void Engine::observe(pipeline::ActionObserver* observer) { state_->executor->observe(observer); }

}  // namespace kuafu
