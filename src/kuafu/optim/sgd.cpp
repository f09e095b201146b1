// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent with momentum.      [Sutskever et al., ICML 2013, section 2]
//
//   1  u = momentum u + (1 - dampening) (g + wd w)
//   2  w = w - lr u                                  heavy ball
//      w = w - lr (g + wd w + momentum u)            Nesterov's
//
// The ops are the same in one pass over memory (kernels/updates.h).
// Dampening, which is in the factors of g and wd, holds from the first step on and goes with heavy ball alone.
// Element by element. State: 1 x parameters in their type; half precision: 2 x parameters in f32 (u,
// master copy).

#include <ATen/ATen.h>

#include "kuafu/optim/formulas.h"
#include "kuafu/optim/rule.h"

namespace kuafu {

void formulas::heavy_ball(Tensor& w, const Tensor& grad, Tensor& u, const ops::SgdArgs& a) {
  u.mul_(a.momentum).add_(ops::scaled(w, grad, a.grad_factor));  // 1
  if (a.weight_decay != 0) u.add_(w, a.weight_decay);            // 1
  w.sub_(u, a.lr);                                               // 2
}

void formulas::nesterov(Tensor& w, const Tensor& grad, Tensor& u, const ops::SgdArgs& a) {
  const Tensor g = at::add(ops::scaled(w, grad, a.grad_factor), w, a.weight_decay);
  u.mul_(a.momentum).add_(g);               // 1
  w.sub_(at::add(g, u, a.momentum), a.lr);  // 2
}

Rule make_sgd(const OptimizerPlan& plan) {
  check_momentum(plan);
  const auto update = [nesterov = plan.nesterov, momentum = plan.momentum,
                       share = 1 - plan.dampening](RulePiece& p, const Rates& rates,
                                                   const Tensor&) {
    const ops::SgdArgs args{rates.lr, momentum, share * p.weight_decay, share * p.grad_factor};
    if (nesterov) {
      ops::nesterov(p.value, p.grad, p.slots[0], args, formulas::nesterov);
    } else {
      ops::sgd(p.value, p.grad, p.slots[0], args, formulas::heavy_ball);
    }
  };
  return {.slots = {"velocity"}, .update = update};
}

}  // namespace kuafu
