// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/certificate_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/engine/push_replay.h"

namespace kuafu {
namespace {

/// Rounding of a sum of K terms is at most (K-1) eps times the sum of their absolute values
/// [Higham, Accuracy and Stability, section 4.2]; a block chains a handful of such sums, and the
/// model `layers` blocks forward and backward. K is the longest reduction: the tokens of a batch
/// (weight gradients), the width of the MLP, or the vocabulary.
double derived_tolerance(const Plan& plan) {
  constexpr double kSumsPerBlock = 8, kEps = std::numeric_limits<double>::epsilon();
  const int64_t tokens = plan.train.batch * plan.model.sequence;
  const int64_t longest =
      std::max({tokens, plan.model.hidden, plan.model.ffn_width(), plan.model.vocab});
  return kSumsPerBlock * kEps * static_cast<double>(longest) *
         static_cast<double>(plan.model.layers + 1);
}

/// An adaptive optimizer divides a gradient by its own size plus epsilon. Where a gradient is zero
/// in exact arithmetic (key biases: softmax does not see them) its rounding is amplified by
/// lr/epsilon. Every push is an update.
double optimizer_term(const Plan& plan, double absolute_gradient_error) {
  const double most = static_cast<double>(kCertificateSteps * plan.parallel.data.size) *
                      plan.optimizer.lr * absolute_gradient_error;
  return plan.optimizer.kind == "sgd" ? most : most / plan.optimizer.epsilon;
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
  return t;
}

struct Difference {
  double absolute = 0, scale = 0;
  std::string worst;
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

void judge(Certificate& c, const Plan& plan, const Trajectory& mine, const Trajectory& reference) {
  const Difference gradient = compare(mine.gradients, reference.gradients);
  const Difference parameter = compare(mine.parameters, reference.parameters);
  const double tolerance = derived_tolerance(plan);
  c.verdict = "equal";
  for (size_t step = 0; step < mine.losses.size(); ++step) {
    c.steps.push_back(static_cast<int64_t>(step));
    c.loss.add(std::abs(mine.losses[step] / reference.losses[step] - 1), tolerance,
               text("loss, step ", step + 1));
  }
  c.gradient.add(gradient.absolute / gradient.scale, tolerance, gradient.worst);
  // Only rounding may be amplified: an error above the tolerance does not widen what is allowed.
  const double rounding = std::min(gradient.absolute, tolerance * gradient.scale);
  c.update.add(parameter.absolute / parameter.scale,
               tolerance + optimizer_term(plan, rounding) / parameter.scale, parameter.worst);
  c.judge();
  if (mine.gradients.size() != reference.gradients.size()) c.refute("gradients are missing");
}

}  // namespace

void certify_replayed(Plan plan, const Registries& registries, Communicator& world,
                      const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                      const EngineOptions& options, Certificate& c) {
  c.reference = "engine";
  c.seed = plan.train.seed;
  c.native.reason = "replicas that go on by themselves have no order in common with another run";
  plan.train.steps = std::max<int64_t>(plan.train.steps, kCertificateSteps);
  plan.model.dtype = DType::kF64;
  EngineOptions unmetered = options;
  unmetered.ledger = nullptr;
  const bool is_first = world.rank() == 0;
  const auto data = make_data(plan);
  Engine engine(plan, registries, world, *data, unmetered);
  const Trajectory mine = follow(engine, is_first ? Keep::kYes : Keep::kNo);
  const std::vector<PushOrder> orders = engine.pushes();
  if (is_first)
    judge(c, plan, mine, replay_pushes(plan, registries, *data, options.device, orders));
}

}  // namespace kuafu
