// SPDX-License-Identifier: Apache-2.0
//
// Adam and AdamW.                                      [Kingma and Ba, arXiv 1412.6980, algorithm 1]
//                           [decoupled decay: Loshchilov and Hutter, arXiv 1711.05101, algorithm 2]
//
//   1  g = g + wd w                                                          Adam alone
//   2  m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
//   3  w = w - lr wd w                                                       AdamW alone
//   4  w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// Element by element. State: 2 x parameters in their type; half precision: 3 x parameters in f32
// (m, v, master copy).

#include "kuafu/optim/rule.h"

namespace kuafu {
namespace {

using Op = void (*)(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs&);

Rule rule_of(const OptimizerPlan& plan, Op op) {
  check_betas(plan);
  return {.slots = {"m", "v"},
          .update = [op, plan](RulePiece& p, const Rates& rates, const Tensor&) {
            op(p.value, p.grad, p.slots[0], p.slots[1],
               {rates.lr, plan.beta1, plan.beta2, plan.epsilon, p.weight_decay, rates.step,
                p.grad_factor});
          }};
}

}  // namespace

Rule make_adam(const OptimizerPlan& plan) { return rule_of(plan, ops::adam); }
Rule make_adamw(const OptimizerPlan& plan) { return rule_of(plan, ops::adamw); }

}  // namespace kuafu
