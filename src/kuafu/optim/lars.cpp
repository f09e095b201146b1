// SPDX-License-Identifier: Apache-2.0
//
// LARS: the rate of a layer follows the quotient of its weights and gradients.
//                                 [You, Gitman and Ginsburg, arXiv 1708.03888, algorithm 1, eq. 6]
//
//   for each layer l
//   1  |w|, |g| of the layer
//   2  ratio = eta |w| / (|g| + wd |w|)             1 where either norm is 0
//   3  v = momentum v + lr ratio (g + wd w)
//   4  w = w - v
//
// Rate and ratio are inside the momentum, as in the paper; its decay polynomial (power 2) is a
// schedule of its own. Layers that are left out: ratio = 1, wd = 0.
// State: 1 x parameters in their type; half precision: 2 x parameters in f32 (v, master copy).

#include <ATen/ATen.h>

#include "kuafu/optim/rule.h"

namespace kuafu {

Rule make_lars(const OptimizerPlan& plan) {
  check_momentum(plan);
  const auto measure = [](RulePiece& p, const Rates&) {
    return ops::lars_norms(p.value, p.grad, p.grad_factor, p.layers);  // 1
  };
  const auto ratios = [eta = plan.coefficient, wd = plan.weight_decay](const Tensor& norms) {
    const Tensor w = norms.select(1, 0), g = norms.select(1, 1);
    const Tensor none = is_zero_layer(norms);
    return w * eta / (g + w * wd + none) * (-none + 1.0) + none;  // 2
  };
  const auto update = [momentum = plan.momentum](RulePiece& p, const Rates& rates,
                                                 const Tensor& ratio) {
    ops::lars(p.value, p.grad, p.slots[0], ratio * rates.lr,
              {rates.lr, momentum, p.weight_decay, p.grad_factor}, p.layers);  // 3, 4
  };
  return {.slots = {"velocity"}, .measure = measure, .ratios = ratios, .update = update};
}

}  // namespace kuafu
