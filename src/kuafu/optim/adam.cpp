// SPDX-License-Identifier: Apache-2.0
//
// Adam and AdamW.                                      [Kingma and Ba, arXiv 1412.6980, algorithm 1]
//                           [decoupled decay: Loshchilov and Hutter, arXiv 1711.05101, algorithm 2]
//
//   1  g = g + wd w                                                          Adam alone
//   2  m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
//   3  w = w - lr wd w                                                       AdamW alone
//   4  w = w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//      w = w - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)            correction_in = "rate"
//
// The second form of 4 is the end of section 2 of the paper, and the first with an epsilon of
// eps / sqrt(1 - b2^t), which is how it is made.
// Element by element. State: 2 x parameters in their type; half precision: 3 x parameters in f32
// (m, v, master copy).

#include <cmath>

#include "kuafu/optim/rule.h"

namespace kuafu {
namespace {

using Op = void (*)(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs&);

Rule rule_of(const OptimizerPlan& plan, Op op) {
  check_betas(plan);
  return {
      .slots = {"m", "v"},
      .update = [op, plan, is_in_rate = plan.correction_in == "rate"](
                    RulePiece& p, const Rates& rates, const Tensor&) {
        const double root = 1 - std::pow(plan.beta2, static_cast<double>(rates.step));
        const double epsilon = is_in_rate ? plan.epsilon / std::sqrt(root) : plan.epsilon;
        op(p.value, p.grad, p.slots[0], p.slots[1],
           {rates.lr, plan.beta1, plan.beta2, epsilon, p.weight_decay, rates.step, p.grad_factor});
      }};
}

}  // namespace

Rule make_adam(const OptimizerPlan& plan) { return rule_of(plan, ops::adam); }
Rule make_adamw(const OptimizerPlan& plan) { return rule_of(plan, ops::adamw); }

}  // namespace kuafu
