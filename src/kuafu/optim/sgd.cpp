// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with momentum.      [Sutskever et al., ICML 2013, section 2]
//
//   1  u = momentum u + (1 - dampening) (g + wd w)
//   2  w = w - lr u                                  heavy ball
//      w = w - lr (g + wd w + momentum u)            Nesterov's
//
// Dampening holds from the first step on and goes with heavy ball alone.
// Element by element. State: 1 x parameters in their type; half precision: 2 x parameters in f32 (u,
// master copy).

#include "kuafu/optim/rule.h"

namespace kuafu {

Rule make_sgd(const OptimizerPlan& plan) {
  check_momentum(plan);
  const auto step = plan.nesterov ? ops::nesterov : ops::sgd;
  return {.slots = {"velocity"},
          .update = [step, momentum = plan.momentum, share = 1 - plan.dampening](
                        RulePiece& p, const Rates& rates, const Tensor&) {
            step(p.value, p.grad, p.slots[0],
                 {rates.lr, momentum, share * p.weight_decay, share * p.grad_factor});
          }};
}

}  // namespace kuafu
