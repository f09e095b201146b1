// SPDX-License-Identifier: Apache-2.0
//
// Gradients of a model without an oracle against differences of its own loss, in f64 on one rank.
//
//   <g, d> against D(h) = (L(w + h d) - L(w - h d)) / 2h, for each parameter along two directions d
//
// Errors of D(h): h^2 L''' / 6, which D(h) - D(h / 2) shows (3/4 of it), and the rounding of the two
// losses over 2h.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>

#include "kuafu/comm/worlds.h"
#include "kuafu/conformance/models.h"
#include "kuafu/conformance/samples.h"
#include "kuafu/conformance/trial_runs.h"

namespace kuafu::conformance {
namespace {

/// Of the values that a parameter is moved by, with all its elements together: at h = 1e-3 the error
/// by the third derivative and by rounding (1e-16 / 1e-3) are both far below a wrong gradient's.
constexpr double kStep = 1e-3;

/// A unit vector of the parameter's extents: the gradient's own direction, where every element that
/// has one counts, or random signs.
enum class Direction : uint8_t { kGradient, kSigns };

Tensor direction_of(Direction which, const Param& p, const Tensor& gradient) {
  if (which == Direction::kGradient) {
    const double length = gradient.norm().item<double>();
    return length > 0 ? gradient / length : gradient.clone();
  }
  const Mesh alone({}, 0);
  const Tensor signs =
      shard(p.name + " signs", p.padded, Layout::replicated(p.padded.size()), alone)
          .value.detach()
          .sign();
  return signs / std::sqrt(static_cast<double>(signs.numel()));
}

/// An engine of one rank whose parameters move.
class Slope {
 public:
  Slope(Engine& engine, double rounding) : engine_(engine), rounding_(rounding) {}

  /// Compares along one direction of one parameter.
  void check(const Param& p, const Tensor& gradient, Direction which, Notes& notes) const {
    const Tensor d = direction_of(which, p, gradient);
    const double expected = (gradient * d).sum().item<double>();
    const double wide = difference_of(p, d, kStep), narrow = difference_of(p, d, kStep / 2);
    const double error = std::abs(narrow - expected);
    const double bound = 2 * std::abs(wide - narrow) + rounding_ / kStep;
    notes.expect(error <= bound, "gradient of ", p.name, " along ",
                 which == Direction::kGradient ? "itself" : "random signs", ": ", expected,
                 ", finite differences ", narrow, ", error ", error, ", tolerance ", bound);
  }

 private:
  double loss_at(const Param& p, const Tensor& moved) const {
    const at::NoGradGuard no_grad;
    const Tensor before = p.value.clone();
    p.value.add_(moved);
    double loss = 0;
    {
      const at::AutoGradMode recording(true);
      loss = engine_.forward_backward();
    }
    p.value.copy_(before);
    return loss;
  }
  double difference_of(const Param& p, const Tensor& d, double h) const {
    return (loss_at(p, h * d) - loss_at(p, -h * d)) / (2 * h);
  }

  Engine& engine_;
  double rounding_;  ///< of two losses
};

void check_slopes(const Plan& plan, const ModelShape& shape, const Registries& registries,
                  Notes& notes) {
  const auto data = made_up_data(plan);
  run_on_threads(1, [&](Communicator& world) {
    Engine engine(plan, registries, world, *data, {});
    const double loss = engine.forward_backward();
    const auto length =
        static_cast<double>(shape.batch * shape.sequence + 4 * shape.hidden + shape.vocab);
    const Slope slope(engine, 2 * kEps * std::abs(loss) * length);
    std::map<const Param*, Tensor> gradients;
    for (const Param* p : engine.params()) {
      const Tensor g = engine.gradient(*p);
      if (g.defined()) gradients[p] = g.clone();
    }
    for (const Param* p : engine.params()) {
      const auto found = gradients.find(p);
      const Tensor g = found == gradients.end() ? at::zeros_like(p->value) : found->second;
      for (const Direction which : {Direction::kGradient, Direction::kSigns}) {
        slope.check(*p, g.detach(), which, notes);
      }
    }
  });
}

}  // namespace

std::vector<Finding> check_differences(const Registries& registries, const std::string& name,
                                       Shapes shapes, const Tell& tell) {
  Findings findings(tell);
  for (const ModelShape& shape : model_shapes(name, shapes)) {
    const Finding blank{.kind = "model",
                        .name = name,
                        .check = "differences",
                        .where = "one rank",
                        .shape = to_string(shape)};
    findings.run_or_refuse(blank, [&](Notes& notes) {
      check_slopes(placed_plan(registries, settings_of(name, shape)), shape, registries, notes);
    });
  }
  return std::move(findings).all();
}

}  // namespace kuafu::conformance
