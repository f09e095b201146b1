// SPDX-License-Identifier: Apache-2.0
//
// LAMB: Adam's direction, as long in every layer as its weights.
//                                                  [You et al., arXiv 1904.00962, algorithm 2]
//
//   1  m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
//   2  m^ = m / (1 - b1^t)          v^ = v / (1 - b2^t)           or m, v without bias correction
//   3  r = m^ / (sqrt(v^) + eps) + wd w
//   for each layer l
//   4  |w|, |r| of the layer
//   5  ratio = |w| / |r|, kept in ratio_min .. ratio_max          1 where either norm is 0
//   6  w = w - lr ratio r
//
// The paper bounds |w| before it divides (bound = "weights"); what DeepSpeed bounds, and
// this one unless told otherwise, is the ratio. With correction_in = "rate" r is of m and v, and 6
// has lr sqrt(1 - b2^t) / (1 - b1^t): the ratio is that of another step.
// Layers that are left out: wd = 0, and, unless scaled_layers = "all", ratio = 1, which is Adam.
// Between the two passes r lies in the place of a gradient that is spare, which nobody reads after
// that: the second one has no square root and no quotient then. Else it is made again from m, v, w.
// The ops are the formulas in one pass over memory each (kernels/layer_updates.h).
// State: 2 x parameters in their type; half precision: 3 x parameters in f32 (m, v, master copy).

#include <ATen/ATen.h>

#include <cmath>
#include <functional>

#include "kuafu/optim/formulas.h"
#include "kuafu/optim/rule.h"

namespace kuafu {
namespace {

Tensor ratio(const OptimizerPlan& plan, const Tensor& norms, const Rates& rates) {
  const Tensor w = norms.select(1, 0), r = norms.select(1, 1);
  const Tensor none = is_zero_layer(norms);
  const bool bounds_weights = plan.bounded() == "weights";
  const Tensor above = bounds_weights ? w.clamp(plan.ratio_min, plan.ratio_max) : w;
  return within_bounds(plan, above / (r + none), rates) * (-none + 1.0) + none;  // 5
}

SlotUses slots_of_passes(const RulePiece& p) {
  return {.update = p.is_grad_spare ? SlotUse::kNone : SlotUse::kRead};
}

Tensor direction(const Tensor& w, const Tensor& m, const Tensor& v, const ops::LambArgs& a) {
  const auto t = static_cast<double>(a.t);
  const double rate = a.t == 0 ? 1 : 1 / (1 - std::pow(a.beta1, t));  // of m^
  const double spread =
      a.t == 0 ? 1 : 1 / std::sqrt(1 - std::pow(a.beta2, t));              // of the root of v^
  return m * rate / (v.sqrt() * spread + a.epsilon) + a.weight_decay * w;  // 2, 3
}

}  // namespace

Tensor formulas::lamb_norms(const Tensor& w, const Tensor& grad, Tensor& m, Tensor& v,
                            const ops::LambArgs& a, const ops::LayerRun& layers) {
  const Tensor g = ops::scaled(w, grad, a.grad_factor);
  m.mul_(a.beta1).add_(g, 1 - a.beta1);           // 1
  v.mul_(a.beta2).add_(g.square(), 1 - a.beta2);  // 1
  const Tensor r = direction(w, m, v, a);         // 2, 3
  if (a.keeps_direction) grad.copy_(r);
  return ops::squares_by_layer(w, r, layers);  // 4
}

void formulas::layer_step(Tensor& w, const Tensor& r, const Tensor& rates,
                          const ops::LayerRun& layers) {
  w.sub_(ops::each_of_layer(rates, w, layers) * r);  // 6
}

void formulas::lamb(Tensor& w, const Tensor& m, const Tensor& v, const Tensor& rates,
                    const ops::LambArgs& a, const ops::LayerRun& layers) {
  formulas::layer_step(w, direction(w, m, v, a), rates, layers);
}

Rule make_lamb(const OptimizerPlan& plan) {
  check_betas(plan);
  const bool is_in_rate = plan.bias_correction && plan.correction_in != "moments";
  const bool is_in_moments = plan.bias_correction && !is_in_rate;
  const auto args = [plan, is_in_moments](const RulePiece& p, const Rates& rates) {
    const int64_t t = is_in_moments ? rates.step : 0;
    const double wd = p.weight_decay, factor = p.grad_factor;
    return ops::LambArgs{plan.beta1, plan.beta2, plan.epsilon, wd, t, factor, p.is_grad_spare};
  };
  const auto measure = [args](RulePiece& p, const Rates& rates) {  // 1 to 4
    return ops::lamb_norms(p.value, p.grad, p.slots[0], p.slots[1], args(p, rates), p.layers,
                           formulas::lamb_norms);
  };
  const auto update = [plan, args, is_in_rate](RulePiece& p, const Rates& rates,
                                               const Tensor& ratio) {
    const double correction = is_in_rate ? correction_of_rate(plan, rates.step) : 1;
    const Tensor each = ratio * (rates.lr * correction);
    if (p.is_grad_spare)
      return ops::layer_step(p.value, p.grad, each, p.layers, formulas::layer_step);  // 6
    ops::lamb(p.value, p.slots[0], p.slots[1], each, args(p, rates), p.layers, formulas::lamb);
  };
  return {.slots = {"m", "v"},
          .slot_uses = slots_of_passes,
          .measure = measure,
          .ratios = std::bind_front(ratio, plan),
          .update = update};
}

}  // namespace kuafu
