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
// The paper bounds |w| before it divides; what most implementations bound, and this one, is the
// ratio. Layers that are left out: ratio = 1, wd = 0, which is Adam.
// r is made again in 6 from m, v and w, so that nothing but state is kept between the two passes.
// State: 2 x parameters in their type; half precision: 3 x parameters in f32 (m, v, master copy).

#include <ATen/ATen.h>

#include "kuafu/optim/rule.h"

namespace kuafu {

Rule make_lamb(const OptimizerPlan& plan) {
  check_betas(plan);
  const auto args = [plan](const RulePiece& p, const Rates& rates) {
    return ops::LambArgs{plan.beta1,
                         plan.beta2,
                         plan.epsilon,
                         p.weight_decay,
                         plan.bias_correction ? rates.step : 0,
                         p.grad_factor};
  };
  const auto measure = [args](RulePiece& p, const Rates& rates) {
    return ops::lamb_norms(p.value, p.grad, p.slots[0], p.slots[1], args(p, rates),
                           p.layers);  // 1 to 4
  };
  const auto ratios = [least = plan.ratio_min, most = plan.ratio_max](const Tensor& norms) {
    const Tensor w = norms.select(1, 0), r = norms.select(1, 1);
    const Tensor none = is_zero_layer(norms);
    return (w / (r + none)).clamp(least, most) * (-none + 1.0) + none;  // 5
  };
  const auto update = [args](RulePiece& p, const Rates& rates, const Tensor& ratio) {
    ops::lamb(p.value, p.slots[0], p.slots[1], ratio * rates.lr, args(p, rates), p.layers);  // 6
  };
  return {.slots = {"m", "v"}, .measure = measure, .ratios = ratios, .update = update};
}

}  // namespace kuafu
