// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/engine.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <type_traits>

#include <torch/csrc/autograd/autograd.h>

#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/expert/routing.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

/// A scalar of the device as a number. Meta tensors have none: the simulated world's oracle is 1.
double read_scalar(const Tensor& t) { return t.is_meta() ? 1.0 : t.item<double>(); }

/// Each sample's tokens in the order given.
std::vector<int64_t> in_order(const std::vector<int64_t>& ids, const std::vector<int64_t>* order) {
  if (order == nullptr) return ids;
  std::vector<int64_t> out = ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t place = i % order->size();
    out[i] = ids[i - place + static_cast<size_t>((*order)[place])];
  }
  return out;
}

/// Numbers of the host on the device; on meta their extents alone.
template <class T>
Tensor to_tensor(const std::vector<T>& numbers, const Shape& shape, at::ScalarType type,
                 at::Device device) {
  const Tensor t = at::empty(shape, at::TensorOptions(type).device(device));
  if (device.is_meta()) return t;
  const at::ScalarType given = std::is_same_v<T, float> ? at::kFloat : at::kLong;
  t.copy_(at::from_blob(const_cast<T*>(numbers.data()), shape, given));
  return t;
}

/// Makes a rank slower: sleeps a multiple of what the thread computes in a scope.
class Slow {
 public:
  explicit Slow(double factor) : factor_(factor), start_(factor > 1 ? seconds() : 0) {}
  ~Slow() {
    if (factor_ <= 1) return;
    std::this_thread::sleep_for(
        std::chrono::duration<double>((factor_ - 1) * (seconds() - start_)));
  }
  Slow(const Slow&) = delete;
  Slow& operator=(const Slow&) = delete;

 private:
  static double seconds() {  // of this thread alone, whoever shares its core
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  double factor_, start_;
};

std::vector<Group> groups_of(Model& model) {
  std::vector<Group> groups;
  for (const auto& block : model.blocks) groups.push_back({block->name(), block->params()});
  return groups;
}

}  // namespace

struct Engine::State {
  State(const Plan& p, const Registries& registries, Communicator& w, const Dataset& d,
        const EngineOptions& o)
      : plan(p),
        options(o),
        world(w),
        dataset(d),
        placement(p, registries, w.rank(), o.device, o.wraps),
        mesh(placement.mesh()),
        model(placement.make_model()) {}

  /// Side of one micro-batch whose first global sample is `first`.
  Side side(const Tokens& tokens, int64_t first, int64_t global_samples) const {
    Side s;
    s.order = placement.order();
    s.batch = tokens.samples;
    s.sequence = tokens.sequence;
    const auto ids = [&](const std::vector<int64_t>& numbers) {
      return to_tensor(in_order(numbers, s.order), {s.batch, s.sequence}, at::kLong,
                       options.device);
    };
    const bool is_image = tokens.patches > 0;
    if (!is_image) {
      s.tokens = ids(tokens.inputs);
      s.targets = ids(tokens.targets);
    }
    if (tokens.is_pair) s.segments = ids(tokens.segments);
    if (tokens.is_pair || is_image) {
      s.labels = to_tensor(tokens.labels, {s.batch}, at::kLong, options.device);
    }
    if (is_image) {
      s.images = to_tensor(tokens.images, {s.batch, tokens.patches, tokens.pixels},
                           scalar_type(plan.model.dtype), options.device);
    }
    s.sample_scale = 1.0 / static_cast<double>(global_samples);
    s.loss_scale = 1.0 / static_cast<double>(global_samples * tokens.predictions);
    s.first_sample = first;
    s.step = steps_done;
    return s;
  }

  /// A local loss summed over the ranks that hold different tokens, axis by axis.
  double global_loss(const Tensor& partial) const {
    const Tensor sum = partial.detach().to(at::kDouble);
    raw::all_reduce(sum, mesh.comm("data"));
    for (const Axis& axis : mesh.axes()) {
      const auto& split = model.loss_axes;
      const bool is_split = std::find(split.begin(), split.end(), axis.name) != split.end();
      if (is_split) raw::all_reduce(sum, mesh.comm(axis.name));
    }
    return read_scalar(sum);
  }

  Tensor micro_batch(const Side& side, bool is_last);
  Tensor run_micro_batches(int64_t first, int64_t count);
  double own_norm();
  void backward_block(size_t b, const Side& side, Flow& in, Flow& out, Tensors losses, Flow& grads);

  Plan plan;
  EngineOptions options;
  Communicator& world;
  const Dataset& dataset;
  Placement placement;
  Mesh& mesh;
  Model model;
  std::unique_ptr<DataParallel> data_parallel;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<ParamShard> ready;  // between forward_backward and update
  int64_t steps_done = 0;
};

Engine::Engine(const Plan& plan, const Registries& registries, Communicator& world,
               const Dataset& dataset, const EngineOptions& options)
    : state_(std::make_unique<State>(plan, registries, world, dataset, options)) {
  State& s = *state_;
  s.placement.connect(world, options.ledger);
  s.data_parallel = make_data_parallel(plan, s.mesh, options.push_script);
  s.data_parallel->attach(groups_of(s.model));
  s.optimizer = make_optimizer(plan.optimizer);
}

Engine::~Engine() = default;

/// Forward through all blocks, then backward a block at a time. A block's input is a leaf of its
/// own small graph; under full recomputation only that input is kept and the graph is made again.
Tensor Engine::State::micro_batch(const Side& side, bool is_last) {
  const double slowdown = options.slowdown ? options.slowdown(steps_done) : 1;
  const bool again = plan.memory.recompute == Recompute::kFull;
  const size_t n = model.blocks.size();
  std::vector<Flow> inputs(n), outputs(n);
  std::vector<Tensors> losses(n);
  Flow flow;
  for (size_t b = 0; b < n; ++b) {
    data_parallel->acquire(static_cast<int>(b));
    for (const Tensor& t : flow) inputs[b].push_back(t.detach().requires_grad_());
    // The head's graph is used at once: making it twice would only cost.
    const bool is_kept = !again || b + 1 == n || model.blocks[b]->saves_nothing();
    const at::AutoGradMode recording(is_kept);
    {
      const Slow slow(slowdown);
      outputs[b] = model.blocks[b]->forward(inputs[b], side);
    }
    losses[b] = model.blocks[b]->take_losses();
    flow = outputs[b];
    if (!is_kept) {
      outputs[b].clear();
      losses[b].clear();
    }
    data_parallel->release(static_cast<int>(b));
  }
  const Tensor loss = flow[0].detach();
  flow.clear();
  Flow grads = {at::ones_like(outputs[n - 1][0])};
  for (size_t b = n; b-- > 0;) {
    data_parallel->acquire(static_cast<int>(b));
    {
      const Slow slow(slowdown);
      backward_block(b, side, inputs[b], outputs[b], std::move(losses[b]), grads);
    }
    data_parallel->grads_ready(static_cast<int>(b), is_last);
    data_parallel->release(static_cast<int>(b));
  }
  return loss;
}

void Engine::State::backward_block(size_t b, const Side& side, Flow& in, Flow& out, Tensors losses,
                                   Flow& grads) {
  if (out.empty()) {
    const RecomputeScope scope;
    const at::AutoGradMode recording(true);
    out = model.blocks[b]->forward(in, side);
    losses = model.blocks[b]->take_losses();
  }
  for (Tensor& loss : losses) {
    grads.push_back(at::ones_like(loss));
    out.push_back(std::move(loss));
  }
  losses.clear();
  torch::autograd::backward(out, grads);
  out.clear();
  grads.clear();
  for (const Tensor& t : in) grads.push_back(t.grad());
  in.clear();
  for (Param* p : model.blocks[b]->params()) {
    if (p->value.grad().defined()) recategorise(p->value.grad(), Category::kGradient);
  }
}

/// Micro-batches [first, first + count) of the step's batch; returns their part of its loss.
Tensor Engine::State::run_micro_batches(int64_t first, int64_t count) {
  const TrainPlan& train = plan.train;
  Tensor loss;
  for (int64_t m = first; m < first + count; ++m) {
    const int64_t in_batch = m * train.micro_batch;
    const Tokens tokens = dataset.train(steps_done * train.batch + in_batch, train.micro_batch);
    const Tensor part = micro_batch(side(tokens, in_batch, train.batch), m + 1 == first + count);
    loss = loss.defined() ? loss + part : part;
  }
  ready = data_parallel->finish();
  return loss;
}

double Engine::forward_backward() {
  State& s = *state_;
  const CategoryScope scope(Category::kActivation);
  const int64_t num_micro = s.plan.num_micro_batches(), replicas = s.plan.parallel.data.size;
  const Tensor loss = s.run_micro_batches(s.mesh.coord("data") * num_micro, num_micro);
  const double mean = is_in_step()
                          ? s.global_loss(loss)
                          : read_scalar(loss.to(at::kDouble)) * static_cast<double>(replicas);
  KUAFU_REQUIRE(std::isfinite(mean), "the loss is ", mean, " at step ", s.steps_done + 1,
                ": training diverged; lower optimizer.lr or raise optimizer.warmup");
  return mean;
}

double Engine::forward_backward_share(int64_t step, int64_t share, int64_t shares) {
  State& s = *state_;
  const int64_t num_micro = s.plan.num_micro_batches();
  KUAFU_CHECK(s.mesh.num_ranks() == 1 && num_micro % shares == 0, "share ", share, " of ", shares,
              " of ", num_micro, " micro-batches on ", s.mesh.describe());
  const CategoryScope scope(Category::kActivation);
  s.steps_done = step;
  const Tensor loss = s.run_micro_batches(share * (num_micro / shares), num_micro / shares);
  return read_scalar(loss.to(at::kDouble)) * static_cast<double>(shares);
}

/// Of the gradients of this replica alone.
double Engine::State::own_norm() {
  Tensor sum;
  for (const auto& block : model.blocks) {
    for (const Param* p : block->params()) {
      if (!p->value.grad().defined()) continue;
      const Tensor squares = ops::sum_of_squares(p->value.grad());
      sum = sum.defined() ? sum + squares : squares;
    }
  }
  return std::sqrt(read_scalar(sum)) * static_cast<double>(plan.parallel.data.size);
}

double Engine::update() {
  State& s = *state_;
  const CategoryScope scope(Category::kTemporary);
  const at::NoGradGuard no_grad;
  const double norm = is_in_step() ? global_grad_norm(s.ready, s.mesh) : s.own_norm();
  clip_gradients(s.ready, norm, s.plan.optimizer.clip);
  s.optimizer->step(s.ready, learning_rate(s.plan.optimizer, s.steps_done, s.plan.train.steps));
  s.data_parallel->publish();
  s.ready.clear();
  for (Param* p : params()) p->value.mutable_grad() = Tensor();
  ++s.steps_done;
  return norm;
}

StepReport Engine::step() {
  StepReport report;
  report.lr = learning_rate(state_->plan.optimizer, state_->steps_done, state_->plan.train.steps);
  report.loss = forward_backward();
  report.grad_norm = update();
  return report;
}

double Engine::validate() {
  State& s = *state_;
  settle();
  const at::NoGradGuard no_grad;
  const CategoryScope scope(Category::kActivation);
  const TrainPlan& train = s.plan.train;
  const int64_t num_micro = s.plan.num_micro_batches();
  const int64_t replica = s.mesh.coord("data");
  const int64_t samples = train.validation_batches * train.batch;
  Tensor total;
  for (int64_t v = 0; v < train.validation_batches * num_micro; ++v) {
    const int64_t batch = v / num_micro, micro = v % num_micro;
    const int64_t first = batch * train.batch + (replica * num_micro + micro) * train.micro_batch;
    Side side = s.side(s.dataset.validation(first, train.micro_batch), first, samples);
    side.is_training = false;
    Flow flow;
    for (const auto& block : s.model.blocks) flow = block->forward(flow, side);
    total = total.defined() ? total + flow[0] : flow[0];
  }
  return s.global_loss(total);
}

std::vector<ExpertLoad> Engine::expert_loads() const {
  const at::NoGradGuard no_grad;
  std::vector<ExpertLoad> loads;
  for (const auto& block : state_->model.blocks) {
    const RouterTally* tally = block->router_tally();
    if (tally == nullptr || tally->is_empty() || tally->counts().is_meta()) continue;
    const Tensor sum = tally->counts().clone();
    raw::all_reduce(sum, state_->mesh.comm("data"));
    for (const std::string& axis : tally->sample_axes()) {
      raw::all_reduce(sum, state_->mesh.comm(axis));
    }
    const Tensor host = sum.cpu();
    const int64_t experts = (host.numel() - 2) / 2;
    const int64_t* n = host.const_data_ptr<int64_t>();
    loads.push_back({block->name(),
                     {n, n + experts},
                     {n + experts, n + 2 * experts},
                     n[2 * experts],
                     n[2 * experts + 1]});
  }
  return loads;
}

double Engine::routing_margin() const {
  double margin = std::numeric_limits<double>::infinity();
  for (const auto& block : state_->model.blocks) {
    if (const RouterTally* tally = block->router_tally())
      margin = std::min(margin, tally->margin());
  }
  return margin;
}

bool Engine::is_in_step() const { return state_->data_parallel->is_in_step(); }
void Engine::settle() { state_->data_parallel->settle(); }

std::vector<double> Engine::mean_over_replicas(std::vector<double> own) {
  if (is_in_step()) return own;
  settle();
  const auto count = static_cast<int64_t>(own.size());
  state_->mesh.comm("data").all_reduce({own.data(), count, DType::kF64}, ReduceOp::kSum).wait();
  for (double& x : own) x /= static_cast<double>(state_->plan.parallel.data.size);
  return own;
}

std::vector<PushOrder> Engine::pushes() { return state_->data_parallel->pushes(); }

int64_t Engine::steps_done() const { return state_->steps_done; }
const Plan& Engine::plan() const { return state_->plan; }
Tensor Engine::value(const Param& p) const { return state_->data_parallel->value(p); }
Tensor Engine::gradient(const Param& p) const { return state_->data_parallel->gradient(p); }
const Mesh& Engine::mesh() const { return state_->mesh; }

std::vector<Param*> Engine::params() {
  std::vector<Param*> all;
  for (const auto& block : state_->model.blocks) {
    for (Param* p : block->params()) all.push_back(p);
  }
  return all;
}

}  // namespace kuafu
