// SPDX-License-Identifier: Apache-2.0
//
// Clipping and the update rules, whole tensors at a time.

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/formulas.h"
#include "kuafu/oracle/orthogonal.h"

namespace kuafu::oracle {
namespace {

using at::Tensor;
using Decay = Rounding::Decay;
using Ratio = Rounding::Ratio;

/// Roundings of an element's update, one after the other.
/// Adam, AdamW, and what Muon gives AdamW: clipping, two constants and a sum for m, one more product
/// for v, bias corrections, root, sum, quotient, rate, decay. LAMB: four more, for r itself, its rate
/// and their product. SGD: clipping, decay and its sum, momentum and its sum, Nesterov's product and
/// sum, rate, difference. LARS: three more, for the ratio, the coefficient and their product.
constexpr int64_t kRoundings = 16, kLambRoundings = 20, kSgdRoundings = 9, kLarsRoundings = 12;

at::ScalarType update_type(const Tensor& weight) {
  return weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// m^ / (sqrt(v^) + eps) of moments that go on by g; without correction m / (sqrt(v) + eps).
///                                                  [Kingma & Ba, arXiv 1412.6980, algorithm 1]
Tensor adam_direction(const Step& s, const Tensor& g, bool is_corrected) {
  const double beta1 = s.plan.beta1, beta2 = s.plan.beta2, t = static_cast<double>(s.t);
  Tensor &m = s.slot("m", g), &v = s.slot("v", g);
  m = beta1 * m + (1 - beta1) * g;
  v = beta2 * v + (1 - beta2) * g * g;
  const Tensor first = is_corrected ? m / (1 - std::pow(beta1, t)) : m;
  const Tensor second = is_corrected ? v / (1 - std::pow(beta2, t)) : v;
  return first / (second.sqrt() + s.plan.epsilon);
}

/// Moments stay as they are and the rate makes up for their bias:
/// alpha_t = alpha sqrt(1 - beta2^t) / (1 - beta1^t)             [the same, the end of section 2]
bool is_corrected_in_rate(const OptimizerPlan& plan) { return plan.correction_in == "rate"; }
double rate_for_raw_moments(const Step& s) {
  const auto t = static_cast<double>(s.t);
  return s.alpha * std::sqrt(1 - std::pow(s.plan.beta2, t)) / (1 - std::pow(s.plan.beta1, t));
}
/// alpha times the direction, by one way or the other.
Tensor adam_step(const Step& s, const Tensor& g) {
  const bool in_rate = is_corrected_in_rate(s.plan);
  const double alpha = in_rate ? rate_for_raw_moments(s) : s.alpha;
  return alpha * adam_direction(s, g, !in_rate);
}

/// The decay is part of the gradient, as in the paper's L2 regularisation.
Tensor adam_rule(const Step& s, const Tensor& g, const Tensor& theta) {
  return theta - adam_step(s, g + s.lambda * theta);
}

/// theta <- theta - (alpha m^ / (sqrt(v^) + eps) + lambda theta), lambda = lr times the decay.
///                                       [Loshchilov & Hutter, arXiv 1711.05101, algorithm 2]
Tensor adamw_rule(const Step& s, const Tensor& g, const Tensor& theta) {
  return theta - (adam_step(s, g) + s.alpha * s.lambda * theta);
}

/// u <- mu u + (1 - tau) (g + lambda w); w <- w - lr u. The decay is part of the gradient; tau, the
/// dampening, as PyTorch has it but for its first step, which it does not dampen.
///      [Sutskever et al., ICML 2013, equations 1 and 2, with lr outside of u, as PyTorch has it]
/// Nesterov: w <- w - lr (g + lambda w + mu u), the gradient's own place being the one ahead.
///                                                            [the same, equations 3 and 4]
Tensor sgd_rule(const Step& s, const Tensor& g, const Tensor& theta) {
  Tensor& u = s.slot("velocity", theta);
  const Tensor decayed = g + s.lambda * theta;
  u = s.plan.momentum * u + (1 - s.plan.dampening) * decayed;
  return theta - s.alpha * (s.plan.nesterov ? decayed + s.plan.momentum * u : u);
}

/// `ratio` where both norms are above zero, 1 elsewhere: a layer that is zero could never leave it.
Tensor where_both(const Tensor& a, const Tensor& b, const Tensor& ratio) {
  return at::where(a.gt(0).logical_and(b.gt(0)), ratio, at::ones_like(ratio));
}

/// lambda^l = eta |w^l| / (|grad L(w^l)| + beta |w^l|), or eta |w^l| / |grad L(w^l) + beta w^l|
Tensor lars_ratio(const Step& s, const Tensor& g, const Tensor& theta) {
  const OptimizerPlan& o = s.plan;
  const Tensor weight = norms_of_layers(theta, s.shape);
  const bool is_of_sum = o.denominator == "norm_of_sum";
  const Tensor gradient = norms_of_layers(is_of_sum ? g + s.lambda * theta : g, s.shape);
  Tensor local = o.coefficient * weight / (is_of_sum ? gradient : gradient + s.lambda * weight);
  if (o.bound == "ratio") local = at::clamp(local, o.ratio_min, o.ratio_max);
  // The rate of a layer, gamma lambda^l, is at most gamma; of gamma = 0 the limit.
  if (o.bound == "rate") {
    local = s.alpha == 0 ? at::ones_like(local) : at::clamp(local / s.alpha, c10::nullopt, 1.0);
  }
  return where_both(weight, gradient, local).to(theta.scalar_type());
}

/// v <- m v + gamma lambda^l (grad L(w) + beta w);  w <- w - v
///                  [You et al., arXiv 1708.03888, equations 4 to 6 and algorithm 1]
/// or  v <- m v + lambda^l (grad L(w) + beta w);  w <- w - gamma v
/// or  v <- m v + grad L(w) + beta w;  w <- w - gamma lambda^l v
/// with each element of grad L(w) + beta w in -c .. c where c > 0
Tensor lars_rule(const Step& s, const Tensor& g, const Tensor& theta) {
  const Tensor ratio = s.is_scaled ? lars_ratio(s, g, theta) : at::ones_like(theta);
  const bool is_outside = s.plan.rate_in != "velocity";
  Tensor& v = s.slot("velocity", theta);
  Tensor decayed = g + s.lambda * theta;
  const double most = s.plan.clip_elements;
  if (most > 0) decayed = at::clamp(decayed, -most, most);
  s.note(ratio, g + s.lambda * theta);
  if (s.plan.rate_in == "step_with_ratio") {
    v = s.plan.momentum * v + decayed;
    return theta - s.alpha * ratio * v;
  }
  v = s.plan.momentum * v + (is_outside ? 1 : s.alpha) * ratio * decayed;
  return is_outside ? theta - s.alpha * v : theta - v;
}

/// x <- x - eta phi(|x|) / |r + lambda x| (r + lambda x), r Adam's direction
///                                                  [You et al., arXiv 1904.00962, algorithm 2]
/// with the quotient of the norms, the first norm alone (phi, as the paper has it), or nothing kept
/// between two bounds.
Tensor lamb_rule(const Step& s, const Tensor& g, const Tensor& theta) {
  const OptimizerPlan& o = s.plan;
  const bool in_rate = o.bias_correction && is_corrected_in_rate(o);
  const Tensor direction = adam_direction(s, g, o.bias_correction && !in_rate) + s.lambda * theta;
  Tensor ratio = at::ones_like(theta);
  if (s.is_scaled) {
    const Tensor x = norms_of_layers(theta, s.shape), r = norms_of_layers(direction, s.shape);
    const bool is_phi = o.bound == "weights", is_free = o.bound == "none";
    const Tensor phi = is_phi ? x.clamp(o.ratio_min, o.ratio_max) : x;
    const Tensor quotient = is_phi || is_free ? phi / r : (phi / r).clamp(o.ratio_min, o.ratio_max);
    ratio = where_both(x, r, quotient).to(theta.scalar_type());
  }
  s.note(ratio, direction);
  return theta - (in_rate ? rate_for_raw_moments(s) : s.alpha) * ratio * direction;
}

/// Hidden matrices: B <- mu B + G; theta <- theta - eta (scale NewtonSchulz5(B) + lambda theta), with
/// Nesterov of G + mu B                    [the same, algorithm 2; decay: Liu et al., arXiv 2502.16982]
/// All else: AdamW, whose rate has the schedule of eta.
Tensor muon_rule(const Step& s, const Tensor& g, const Tensor& theta) {
  const bool is_hidden =
      s.name.starts_with("blocks.") && s.shape.shape.size() - (s.shape.is_stacked ? 1 : 0) == 2;
  if (!is_hidden) {
    const double alpha = s.plan.adam_lr * (s.alpha / s.plan.lr);  // the product may be subnormal
    return theta - alpha * (adam_direction(s, g, true) + s.lambda * theta);
  }
  Tensor& b = s.slot("velocity", theta);
  b = s.plan.momentum * b + g;
  const Tensor u = s.plan.nesterov ? g + s.plan.momentum * b : b;
  return theta - s.alpha * (orthogonal_step(s.plan, u, s.shape) + s.lambda * theta);
}

bool is_left_out(const OptimizerPlan& plan, const UpdateRule& rule, const Weight& weight) {
  const bool leaves_vectors =
      plan.exclude == "vectors" || (plan.exclude == "auto" && rule.is_by_layers);
  return leaves_vectors && weight.shape.size() - (weight.is_stacked ? 1 : 0) == 1;
}

/// Those left out have no ratio, nor has a layer that does not decay where the plan says so.
bool has_ratio(const OptimizerPlan& plan, bool is_out) {
  if (plan.scaled_layers == "all") return true;
  const bool decays = !is_out && plan.weight_decay > 0;
  return plan.scaled_layers == "decayed" ? decays : !is_out;
}

}  // namespace

Tensor& Step::slot(const std::string& kind, const Tensor& theta) const {
  Tensor& s = state.slots[kind][name];
  if (!s.defined()) s = at::zeros_like(theta);
  return s;
}

void Step::note(const Tensor& ratio, const Tensor& direction) const {
  if (trust == nullptr) return;
  trust->ratio[name] = ratio;
  trust->direction[name] = direction;
}

UpdateRule adamw_formula() {
  return {adamw_rule, false, {kRoundings, Decay::kOfWeight, Ratio::kNone, true}};
}
UpdateRule sgd_formula() { return {sgd_rule, false, {kSgdRoundings}}; }
UpdateRule adam_formula() {
  return {adam_rule, false, {kRoundings, Decay::kInGradient, Ratio::kNone, true}};
}
UpdateRule lars_formula() {
  return {lars_rule, true, {kLarsRoundings, Decay::kInGradient, Ratio::kOfGradient}};
}
UpdateRule lamb_formula() {
  return {lamb_rule, true, {kLambRoundings, Decay::kInDirection, Ratio::kOfDirection, true}};
}
UpdateRule muon_formula() {
  return {muon_rule, true, {kRoundings, Decay::kOfWeight, Ratio::kNone, true, orthogonal_error}};
}

double norm_of(const Tensors& gradients) {
  double sum = 0;
  for (const auto& [name, g] : gradients) {
    sum += g.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

Tensor norms_of_layers(const Tensor& t, const Weight& weight) {
  // (E, rows, turns, fused, run): a layer is one e and one of the fused.
  const int64_t stacked = weight.is_stacked ? t.size(0) : 1;
  const int64_t turns = t.size(-1) / (weight.fused * weight.run);
  const Tensor parts = t.to(at::kDouble).reshape({stacked, -1, turns, weight.fused, weight.run});
  const Tensor norms = parts.square().sum({1, 2, 4}, true).sqrt();
  return norms.expand(parts.sizes()).reshape(t.sizes());
}

bool is_excluded(const OptimizerPlan& plan, const Weight& weight, const UpdateRules& rules) {
  return is_left_out(plan, rules.find(plan.kind), weight);
}

bool is_scaled(const OptimizerPlan& plan, const Weight& weight, const UpdateRules& rules) {
  return has_ratio(plan, is_excluded(plan, weight, rules));
}

/// Clipping: g <- g c / max(c, |g|)           [Pascanu et al., arXiv 1211.5063, algorithm 1].
void update(const OptimizerPlan& plan, double lr, double norm, const Tensors& gradients,
            Tensors& weights, State& state, const Weights& shapes, Trust* trust,
            const UpdateRules& rules) {
  const at::NoGradGuard no_grad;
  const UpdateRule& rule = rules.find(plan.kind);
  const double factor = plan.clip > 0 && norm > plan.clip ? plan.clip / norm : 1;
  ++state.num_steps;
  for (const auto& [name, gradient] : gradients) {
    Tensor& weight = weights.at(name);
    const bool is_half = update_type(weight) != weight.scalar_type();
    Tensor& master = is_half ? state.slots["master"][name] : weight;
    if (!master.defined()) master = weight.to(update_type(weight));
    const Tensor g = gradient.to(master.scalar_type()) * factor;
    const auto shape = shapes.find(name);
    const Weight of = shape == shapes.end() ? Weight{.shape = weight.sizes().vec()} : shape->second;
    const bool is_out = is_left_out(plan, rule, of);
    const Step step{.plan = plan,
                    .alpha = lr,
                    .lambda = is_out ? 0 : plan.weight_decay,
                    .t = state.num_steps,
                    .shape = of,
                    .is_scaled = has_ratio(plan, is_out),
                    .state = state,
                    .name = name,
                    .trust = trust};
    master = rule.update(step, g, master);
    if (is_half) weight = master.to(weight.scalar_type());
  }
}

}  // namespace kuafu::oracle
