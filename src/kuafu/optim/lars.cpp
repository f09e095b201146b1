// SPDX-License-Identifier: Apache-2.0
//
// LARS: the rate of a layer follows the quotient of its weights and gradients.
//                                 [You, Gitman and Ginsburg, arXiv 1708.03888, algorithm 1, eq. 6]
//
//   for each layer l
//   1  |w|, |g| of the layer                        or |g + wd w|: denominator
//   2  ratio = eta |w| / (|g| + wd |w|)             or eta |w| / |g + wd w|; 1 where either norm is 0
//   3  bound: none; the ratio in ratio_min .. ratio_max; or the rate, ratio = min(ratio / lr, 1)
//   4  x = g + wd w                                 clip_elements = c: each kept in -c .. c
//   5  v = momentum v + lr ratio x
//   6  w = w - v                                    rate_in = "step": lr is here instead of in 5;
//                                                   "step_with_ratio": lr and ratio are
//
// The forms on the left are the paper's; its decay polynomial (power 2) is a schedule of its own.
// Layers that are left out: ratio = 1, wd = 0.
// The ops are the formulas in one pass over memory each (kernels/layer_updates.h).
// State: 1 x parameters in their type; half precision: 2 x parameters in f32 (v, master copy).

#include <ATen/ATen.h>

#include "kuafu/optim/formulas.h"
#include "kuafu/optim/rule.h"

namespace kuafu {

Tensor formulas::lars_norms(const Tensor& w, const Tensor& grad, double grad_factor,
                            const ops::LayerRun& layers, double weight_decay) {
  const Tensor g = at::add(ops::scaled(w, grad, grad_factor), w, weight_decay);
  return ops::squares_by_layer(w, g, layers);  // 1
}

void formulas::lars(Tensor& w, const Tensor& grad, Tensor& v, const Tensor& rates,
                    const ops::SgdArgs& a, const ops::LayerRun& layers) {
  const bool is_ratio_outside = rates.dim() == 2;
  const Tensor inside = is_ratio_outside ? rates.select(1, 0) : rates;
  Tensor x = at::add(ops::scaled(w, grad, a.grad_factor), w, a.weight_decay);  // 4
  if (a.clip_elements > 0) x = x.clamp(-a.clip_elements, a.clip_elements);     // 4
  v.mul_(a.momentum).add_(ops::each_of_layer(inside, w, layers) * x);          // 5
  if (!is_ratio_outside) {
    w.sub_(v, a.lr);  // 6
  } else {
    w.sub_(ops::each_of_layer(rates.select(1, 1) * a.lr, w, layers) * v);  // 6
  }
}

Rule make_lars(const OptimizerPlan& plan) {
  check_momentum(plan);
  const bool is_of_sum = plan.denominator == "norm_of_sum";
  const auto measure = [is_of_sum](RulePiece& p, const Rates&) {
    return ops::lars_norms(p.value, p.grad, p.grad_factor, p.layers, is_of_sum ? p.weight_decay : 0,
                           formulas::lars_norms);  // 1
  };
  const auto ratios = [plan, is_of_sum](const Tensor& norms, const Rates& rates) {
    const Tensor w = norms.select(1, 0), g = norms.select(1, 1);
    const Tensor none = is_zero_layer(norms);
    const Tensor below = is_of_sum ? g : g + w * plan.weight_decay;
    const Tensor ratio = w * plan.coefficient / (below + none);       // 2
    return within_bounds(plan, ratio, rates) * (-none + 1.0) + none;  // 3
  };
  const auto update = [momentum = plan.momentum, most = plan.clip_elements,
                       is_rate_inside = plan.rate_in == "velocity",
                       is_ratio_outside = plan.rate_in == "step_with_ratio"](
                          RulePiece& p, const Rates& rates, const Tensor& ratio) {
    const Tensor rates_of_layers = is_rate_inside     ? ratio * rates.lr
                                   : is_ratio_outside ? at::stack({at::ones_like(ratio), ratio}, 1)
                                                      : ratio;
    ops::lars(p.value, p.grad, p.slots[0], rates_of_layers,
              {is_rate_inside ? 1 : rates.lr, momentum, p.weight_decay, p.grad_factor, most},
              p.layers, formulas::lars);  // 4 to 6
  };
  const auto uses = [](const RulePiece&) { return SlotUses{.measure = SlotUse::kNone}; };
  return {.slots = {"velocity"},
          .slot_uses = uses,
          .measure = measure,
          .ratios = ratios,
          .update = update};
}

}  // namespace kuafu
