// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/certificate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kuafu/comm/worlds.h"
#include "kuafu/engine/miniature.h"
#include "kuafu/engine/replay.h"
#include "kuafu/meter/book.h"

namespace kuafu {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();

/// Rounding of a sum of K terms is at most (K-1) eps times the sum of their absolute values
/// [Higham, Accuracy and Stability, section 4.2]; a block chains a handful of such sums, and the
/// model `layers` blocks forward and backward. K is the longest reduction: the tokens of a batch
/// (weight gradients), the width of the MLP, or the vocabulary.
double derived_tolerance(const Plan& plan) {
  constexpr double kSumsPerBlock = 8;
  const int64_t tokens = plan.train.batch * plan.model.sequence;
  const int64_t longest =
      std::max({tokens, plan.model.hidden, plan.model.ffn_width(), plan.model.vocab});
  return kSumsPerBlock * kEps * static_cast<double>(longest) *
         static_cast<double>(plan.model.layers + 1);
}

/// An adaptive optimizer divides a gradient by its own size plus epsilon. Where a gradient is zero
/// in exact arithmetic (key biases: softmax does not see them) its rounding is amplified by
/// lr/epsilon. Under staleness every push is an update.
double optimizer_term(const Plan& plan, double absolute_gradient_error) {
  const int64_t pushes = plan.parallel.data.staleness > 0 ? plan.parallel.data.size : 1;
  const double most =
      static_cast<double>(kCertificateSteps * pushes) * plan.optimizer.lr * absolute_gradient_error;
  return plan.optimizer.kind == "sgd" ? most : most / plan.optimizer.epsilon;
}

/// Parameters, gradients, AdamW state and the largest activations of one copy, roughly: decides
/// between "full" and "scaled" only.
int64_t estimated_bytes(const Plan& plan) {
  const ModelPlan& m = plan.model;
  const int64_t mixtures = m.kind == "moe_gpt" ? m.layers / m.moe_every : 0;
  const int64_t mlp = (m.mlp == "swiglu" ? 3 : 2) * m.hidden * m.ffn_width();
  const int64_t weights = m.layers * (4 * m.hidden * m.hidden + mlp) +
                          (m.vocab + m.sequence) * m.hidden +
                          mixtures * (m.experts + m.shared_experts) * mlp;
  const int64_t tokens = plan.train.batch * m.sequence;
  const int64_t activations =
      tokens * (m.layers * (12 * m.hidden + 2 * m.ffn_width()) + 3 * m.vocab);
  return 8 * (6 * weights + activations);
}

/// Steps an engine and gathers whole tensors.
Trajectory follow(Engine& engine, Keep keep) {
  Trajectory t;
  for (int64_t step = 0; step < kCertificateSteps; ++step) {
    t.losses.push_back(engine.forward_backward());
    if (step == 0) t.gradients = whole_gradients(engine, keep);
    engine.update();
  }
  t.parameters = whole_parameters(engine, keep);
  t.losses = engine.mean_over_replicas(std::move(t.losses));
  t.routing_margin = engine.routing_margin();
  return t;
}

struct Difference {
  double absolute = 0, scale = 0;
  std::string worst;
  double relative() const { return absolute / std::max(scale, 1e-300); }
};

/// Largest |a - b| over all tensors and the largest |b|. A missing tensor or a NaN is infinitely
/// far.
Difference compare(const WholeTensors& a, const WholeTensors& b) {
  Difference d;
  for (const auto& [name, expected] : b) {
    const auto found = a.find(name);
    double far = std::numeric_limits<double>::infinity();
    if (found != a.end()) {
      const double measured = (found->second - expected).abs().max().item<double>();
      if (!std::isnan(measured)) far = measured;
    }
    d.scale = std::max(d.scale, expected.abs().max().item<double>());
    if (far > d.absolute || d.worst.empty()) {
      d.absolute = std::max(d.absolute, far);
      d.worst = name;
    }
  }
  return d;
}

/// The reference must be one rank in every respect, also where the plan runs under MPI or in tests.
Trajectory run_reference(const Plan& plan, const Registries& registries, const Dataset& data,
                         at::Device device) {
  const auto alone = make_self();
  Engine engine(plan, registries, *alone, data, {.device = device});
  return follow(engine, Keep::kYes);
}

/// The reference of the first of kRoutingDraws seeds, from the plan's on, whose routing decisions
/// are all clear; of the last where none is. Leaves the seed in the plan and its data in `data`.
Trajectory clear_reference(Plan& plan, const Registries& registries,
                           const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                           at::Device device, std::unique_ptr<Dataset>& data) {
  for (int64_t draw = 1;; ++draw) {
    data = make_data(plan);
    Plan one = single_rank(plan);
    one.train.loss_scale = 1;  // proves that the plan takes its scale out again
    Trajectory t = run_reference(one, registries, *data, device);
    if (t.routing_margin > derived_tolerance(plan) || draw == kRoutingDraws) return t;
    ++plan.train.seed;
  }
}

/// Rank 0's certificate on every rank.
void share(Certificate& c, Communicator& world) {
  double numbers[8] = {c.verdict == "equal" ? 1.0 : 0.0,
                       c.loss_error,
                       c.gradient_error,
                       c.parameter_error,
                       c.tolerance,
                       c.parameter_tolerance,
                       c.native_error,
                       c.native_error_one_rank};
  world.broadcast({numbers, 8, DType::kF64}, 0).wait_host();
  c.verdict = numbers[0] == 1.0 ? "equal" : "different";
  c.loss_error = numbers[1];
  c.gradient_error = numbers[2];
  c.parameter_error = numbers[3];
  c.tolerance = numbers[4];
  c.parameter_tolerance = numbers[5];
  c.native_error = numbers[6];
  c.native_error_one_rank = numbers[7];
}

void judge(Certificate& c, const Plan& plan, const Trajectory& mine, const Trajectory& reference) {
  const Difference gradient = compare(mine.gradients, reference.gradients);
  const Difference parameter = compare(mine.parameters, reference.parameters);
  c.loss_error = std::abs(mine.losses[0] / reference.losses[0] - 1);
  c.gradient_error = gradient.relative();
  c.parameter_error = parameter.relative();
  c.tolerance = derived_tolerance(plan);
  // Only rounding may be amplified: an error above the tolerance does not widen what is allowed.
  const double rounding = std::min(gradient.absolute, c.tolerance * gradient.scale);
  c.parameter_tolerance = c.tolerance + optimizer_term(plan, rounding) / parameter.scale;
  const bool is_equal = c.loss_error <= c.tolerance && c.gradient_error <= c.tolerance &&
                        c.parameter_error <= c.parameter_tolerance &&
                        mine.gradients.size() == reference.gradients.size();
  c.verdict = is_equal ? "equal" : "different";
  c.worst = c.gradient_error > c.tolerance ? gradient.worst : parameter.worst;
}

double last_loss(const Plan& plan, const Registries& registries, Communicator& world,
                 const Dataset& data, const EngineOptions& options) {
  Engine engine(plan, registries, world, data, options);
  double loss = 0;
  for (int64_t step = 0; step < kCertificateSteps; ++step) loss = engine.step().loss;
  return loss;
}

}  // namespace

Certificate certify(const Plan& original, const Registries& registries, Communicator& world,
                    const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                    const EngineOptions& options, int64_t memory_limit) {
  const BookScope unbooked(nullptr);
  Certificate c;
  c.steps = kCertificateSteps;
  Plan plan = original;
  if (2 * estimated_bytes(plan) > memory_limit) {
    const Miniature small = miniature(plan, registries);
    c.level = "scaled";
    c.worst = small.reason;
    if (!small.plan) return c;
    plan = *small.plan;
  }
  plan.train.steps = std::max<int64_t>(plan.train.steps, kCertificateSteps);
  const DType native = plan.model.dtype;
  const double loss_scale = plan.train.loss_scale;
  if (plan.has_dynamic_scale()) plan.train.loss_scale = TrainPlan::kDynamicScale;
  plan.model.dtype = DType::kF64;
  EngineOptions unmetered = options;
  unmetered.ledger = nullptr;

  const bool is_first = world.rank() == 0;
  Trajectory reference, mine;
  std::unique_ptr<Dataset> data;
  const bool is_stale = plan.parallel.data.staleness > 0;  // the reference replays what happened
  if (is_first && is_stale) data = make_data(plan);
  if (is_first && !is_stale) {
    reference = clear_reference(plan, registries, make_data, options.device, data);
  }
  auto draws = static_cast<int64_t>(plan.train.seed - original.train.seed);
  world.broadcast({&draws, 1, DType::kI64}, 0).wait_host();
  plan.train.seed += static_cast<uint64_t>(draws) - (plan.train.seed - original.train.seed);
  c.seed = plan.train.seed;
  if (!is_first) data = make_data(plan);
  {
    Engine engine(plan, registries, world, *data, unmetered);
    mine = follow(engine, is_first ? Keep::kYes : Keep::kNo);
    const std::vector<PushOrder> orders = engine.pushes();
    if (is_first && is_stale) {
      reference = replay_pushes(plan, registries, *data, options.device, orders);
    }
  }
  if (is_first) judge(c, plan, mine, reference);

  const bool is_half = native == DType::kBF16 || native == DType::kF16;
  if (is_half && !is_stale) {  // two stale runs have no order in common
    c.has_native = true;
    plan.model.dtype = native;
    plan.train.loss_scale = loss_scale;
    const double loss = last_loss(plan, registries, world, *data, unmetered);
    if (is_first) {
      const double exact = reference.losses.back();
      const auto alone = make_self();
      c.native_error = std::abs(loss / exact - 1);
      c.native_error_one_rank = std::abs(
          last_loss(single_rank(plan), registries, *alone, *data, {.device = options.device}) /
              exact -
          1);
      // Losses that agree to the last digit are equal whatever the ratio of two roundings.
      const double floor = native == DType::kBF16 ? 0x1.0p-8 : 0x1.0p-11;
      if (c.native_error > std::max(2 * c.native_error_one_rank, floor)) c.verdict = "different";
    }
  }
  share(c, world);
  return c;
}

}  // namespace kuafu
