// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/certificate_replay.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "kuafu/engine/certificate_step.h"
#include "kuafu/engine/push_replay.h"
#include "kuafu/engine/whole.h"
#include "kuafu/parallel/data/served_part.h"

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

/// What a few steps of a run left behind, whole on rank 0.
struct Followed {
  StaleRun run;
  WholeTensors gradients;   ///< of the first step, summed over the workers
  WholeTensors parameters;  ///< after the last step
};

Followed follow(Engine& engine, Communicator& world, int64_t steps) {
  const Keep keep = world.rank() == 0 ? Keep::kYes : Keep::kNo;
  Followed f;
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) {
    losses.push_back(engine.forward_backward());
    if (step == 0) f.gradients = whole_gradients(engine, keep);
    engine.update();
  }
  f.parameters = whole_parameters(engine, keep);
  f.run = stale_run(engine, world, losses);
  return f;
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

void compare_losses(Proof& proof, const StaleRun& run, const Replayed& replayed, double bound) {
  for (size_t step = 0; step < replayed.losses[0].size(); ++step) {
    proof.steps.push_back(static_cast<int64_t>(step));
    for (size_t w = 0; w < replayed.losses.size(); ++w) {
      proof.loss.add(std::abs(run.losses[w][step] / replayed.losses[w][step] - 1), bound,
                     text("loss of worker ", w, ", step ", step + 1));
    }
  }
}

/// The f64 twin, whole.
void judge_twin(Proof& proof, const Plan& plan, const Followed& mine, const Replayed& replayed) {
  const Difference gradient = compare(mine.gradients, replayed.gradients);
  const Difference parameter = compare(mine.parameters, replayed.weights);
  const double tolerance = derived_tolerance(plan);
  proof.verdict = "equal";
  compare_losses(proof, mine.run, replayed, tolerance);
  proof.gradient.add(gradient.absolute / gradient.scale, tolerance, gradient.worst);
  // Only rounding may be amplified: an error above the tolerance does not widen what is allowed.
  const double rounding = std::min(gradient.absolute, tolerance * gradient.scale);
  proof.update.add(parameter.absolute / parameter.scale,
                   tolerance + optimizer_term(plan, rounding) / parameter.scale, parameter.worst);
  proof.judge();
  if (mine.gradients.size() != replayed.gradients.size()) proof.refute("gradients are missing");
}

/// The losses of the run's own first steps. Rounding is measured: the same replay in the run's own
/// type, for f64 that of f32 times the ratio of both roundoffs, see certificate_step.cpp.
void judge_native(Proof& proof, const Plan& plan, const FlatBucket& layout, const StaleRun& run,
                  Reference& reference) {
  const auto steps = std::min<int64_t>(kCertificateSteps, std::ssize(run.losses.at(0)));
  if (steps == 0) {
    proof.reason = "no step was made";
    return;
  }
  const DType type = plan.model.dtype, coarse = type == DType::kF64 ? DType::kF32 : type;
  PushReplay told{.plan = plan, .layout = layout, .orders = run.orders, .steps = steps};
  const Replayed exact = replay_pushes(told, reference);
  told.type = scalar_type(coarse);
  const Replayed rounded = replay_pushes(told, reference);
  double most = 0;
  for (size_t w = 0; w < exact.losses.size(); ++w) {
    for (size_t t = 0; t < exact.losses[w].size(); ++t) {
      most = std::max(most, std::abs(rounded.losses[w][t] / exact.losses[w][t] - 1));
    }
  }
  proof.verdict = "equal";
  compare_losses(proof, run, exact,
                 loss_bound(plan, most * unit_roundoff(type) / unit_roundoff(coarse)));
  proof.judge();
}

}  // namespace

StaleRun stale_run(Engine& engine, Communicator& world, const std::vector<double>& losses) {
  StaleRun run{.orders = engine.pushes(), .losses = {}};
  const auto steps = static_cast<int64_t>(losses.size());
  std::vector<double> mine = losses, all(losses.size() * static_cast<size_t>(world.size()));
  world.all_gather({all.data(), std::ssize(all), DType::kF64}, {mine.data(), steps, DType::kF64})
      .wait_host();
  for (auto from = all.begin(); from != all.end(); from += steps) {
    run.losses.emplace_back(from, from + steps);
  }
  return run;
}

void certify_replayed(const Plan& original, const Registries& registries, Communicator& world,
                      const std::function<std::unique_ptr<Dataset>(const Plan&)>& make_data,
                      const EngineOptions& options, const StaleRun* timed, Certificate& c) {
  EngineOptions unmetered = options;
  unmetered.ledger = nullptr;
  // Native first: the twin may need more steps than the plan has.
  for (const bool is_twin : {false, true}) {
    Plan plan = original;
    if (is_twin) {
      plan.train.steps = std::max<int64_t>(plan.train.steps, kCertificateSteps);
      plan.model.dtype = DType::kF64;
    }
    const auto data = make_data(plan);
    Engine engine(plan, registries, world, *data, unmetered);
    const bool is_followed = is_twin || timed == nullptr;
    const int64_t steps = std::min(plan.train.steps, kCertificateSteps);
    Followed mine;
    if (is_followed) mine = follow(engine, world, steps);
    if (world.rank() != 0) continue;
    const FlatBucket layout = whole_model(engine.params(), engine.mesh());
    Proof& proof = is_twin ? c : c.native;
    try {
      const auto reference = make_reference(plan, registries, *data);
      const StaleRun& run = is_followed ? mine.run : *timed;
      if (is_twin) {
        judge_twin(proof, plan, mine, replay_pushes({plan, layout, run.orders, steps}, *reference));
      } else {
        judge_native(proof, plan, layout, run, *reference);
      }
    } catch (const ConfigError& error) {
      proof.verdict = "not_run";
      proof.reason = error.what();
    }
  }
  c.conclude();
}

}  // namespace kuafu
