// SPDX-License-Identifier: Apache-2.0
//
// Clipping, AdamW, SGD with momentum and the learning-rate schedule.

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu::oracle {
namespace {

using at::Tensor;

at::ScalarType update_type(const Tensor& weight) {
  return weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor& slot(State& state, const char* kind, const std::string& name, const Tensor& weight) {
  Tensor& t = state.slots[kind][name];
  if (!t.defined()) t = at::zeros(weight.sizes(), weight.options().dtype(update_type(weight)));
  return t;
}

/// theta <- theta - (alpha m^ / (sqrt(v^) + eps) + lambda theta), lambda = lr times the decay.
///                                       [Loshchilov & Hutter, arXiv 1711.05101, algorithm 2]
void adamw_rule(const OptimizerPlan& p, double lr, const Tensor& g, Tensor& m, Tensor& v, int64_t t,
                Tensor& w) {
  const auto steps = static_cast<double>(t);
  m = p.beta1 * m + (1 - p.beta1) * g;                                           // line 7
  v = p.beta2 * v + (1 - p.beta2) * g * g;                                       // line 8
  const Tensor first = m / (1 - std::pow(p.beta1, steps));                       // line 9
  const Tensor second = v / (1 - std::pow(p.beta2, steps));                      // line 10
  w = w - (lr * first / (second.sqrt() + p.epsilon) + lr * p.weight_decay * w);  // line 12
}

/// u <- mu u + (g + lambda w); w <- w - lr u. The decay is part of the gradient.
///      [Sutskever et al., ICML 2013, equations 1 and 2, with lr outside of u, as PyTorch has it]
void sgd_rule(const OptimizerPlan& p, double lr, const Tensor& g, Tensor& u, Tensor& w) {
  u = p.momentum * u + (g + p.weight_decay * w);
  w = w - lr * u;
}

}  // namespace

double norm_of(const Tensors& gradients) {
  double sum = 0;
  for (const auto& [name, g] : gradients) {
    sum += g.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

/// Linear warm-up: step t of w has (t + 1) / w of the rate [Goyal et al., arXiv 1706.02677, 2.2].
/// Cosine: eta_min + (eta_max - eta_min) (1 + cos(pi T_cur / T)) / 2, T_cur = 0 at the first step
/// after warm-up and T at the last step  [Loshchilov & Hutter, arXiv 1608.03983, equation 5].
double learning_rate(const OptimizerPlan& plan, int64_t t, int64_t steps) {
  if (t < plan.warmup) {
    return plan.lr * static_cast<double>(t + 1) / static_cast<double>(plan.warmup);
  }
  if (plan.schedule == "constant") return plan.lr;
  KUAFU_REQUIRE(plan.schedule == "cosine", "optimizer.schedule = \"", plan.schedule,
                "\" is not known to the oracle; allowed: constant, cosine");
  const auto last = static_cast<double>(std::max<int64_t>(1, steps - 1 - plan.warmup));
  const double done = std::min(1.0, static_cast<double>(t - plan.warmup) / last);
  const double least = plan.lr * plan.min_lr_ratio;
  return least + 0.5 * (plan.lr - least) * (1 + std::cos(std::numbers::pi * done));
}

/// Clipping: g <- g c / max(c, |g|)           [Pascanu et al., arXiv 1211.5063, algorithm 1].
void update(const OptimizerPlan& plan, double lr, double norm, const Tensors& gradients,
            Tensors& weights, State& state) {
  const at::NoGradGuard no_grad;
  const bool is_adamw = plan.kind == "adamw";
  KUAFU_REQUIRE(is_adamw || plan.kind == "sgd", "optimizer.kind = \"", plan.kind,
                "\" is not known to the oracle; allowed: adamw, sgd");
  const double factor = plan.clip > 0 && norm > plan.clip ? plan.clip / norm : 1;
  ++state.num_steps;
  for (const auto& [name, gradient] : gradients) {
    Tensor& weight = weights.at(name);
    const bool is_half = update_type(weight) != weight.scalar_type();
    Tensor& master = is_half ? state.slots["master"][name] : weight;
    if (!master.defined()) master = weight.to(update_type(weight));
    const Tensor g = gradient.to(master.scalar_type()) * factor;
    if (is_adamw) {
      adamw_rule(plan, lr, g, slot(state, "m", name, weight), slot(state, "v", name, weight),
                 state.num_steps, master);
    } else {
      sgd_rule(plan, lr, g, slot(state, "velocity", name, weight), master);
    }
    if (is_half) weight = master.to(weight.scalar_type());
  }
}

}  // namespace kuafu::oracle
