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
// The ops are the same in one pass over memory (kernels/updates.h).
// Element by element. State: 2 x parameters in their type; half precision: 3 x parameters in f32
// (m, v, master copy).

#include <ATen/ATen.h>

#include <cmath>

#include "kuafu/optim/formulas.h"
#include "kuafu/optim/rule.h"

namespace kuafu {
namespace {

enum class Decay : uint8_t { kInGradient, kOfWeight };

template <Decay decay>
void by_paper(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a) {
  const auto t = static_cast<double>(a.t);
  Tensor g = ops::scaled(w, grad, a.grad_factor);
  if (decay == Decay::kInGradient) g = at::add(g, w, a.weight_decay);  // 1
  m.mul_(a.beta1).add_(g, 1 - a.beta1);                                // 2
  v.mul_(a.beta2).addcmul_(g, g, 1 - a.beta2);                         // 2
  if (decay == Decay::kOfWeight) w.mul_(1 - a.lr * a.weight_decay);    // 3
  const double spread = 1 / std::sqrt(1 - std::pow(a.beta2, t));       // of the root of v
  const Tensor root = v.sqrt().mul_(spread).add_(a.epsilon);           // 4
  w.addcdiv_(m, root, -a.lr / (1 - std::pow(a.beta1, t)));             // 4
}

/// The same in one kernel of ATen, where it can be: it makes 1 - beta1 of the rounded 1 - beta1, and
/// nothing is left of a small beta1.
template <Decay decay>
void by_aten(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a) {
  if (a.beta1 < 0.5) return by_paper<decay>(w, grad, m, v, a);
  const Tensor t = at::full({}, static_cast<double>(a.t), w.options().dtype(at::kFloat));
  const Tensor g = ops::scaled(w, grad, a.grad_factor);
  constexpr auto fused = [](const auto&... arguments) {
    if constexpr (decay == Decay::kInGradient) {
      at::_fused_adam_(arguments...);
    } else {
      at::_fused_adamw_(arguments...);
    }
  };
  fused(at::TensorList(w), at::TensorList(g), at::TensorList(m), at::TensorList(v),
        at::TensorList(), at::TensorList(t), a.lr, a.beta1, a.beta2, a.weight_decay, a.epsilon,
        false, false);
}

using Op = void (*)(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs&,
                    ops::AdamFormula);

Rule rule_of(const OptimizerPlan& plan, Op op, ops::AdamFormula formula) {
  check_betas(plan);
  return {
      .slots = {"m", "v"},
      .update = [op, formula, plan, is_in_rate = plan.correction_in == "rate"](
                    RulePiece& p, const Rates& rates, const Tensor&) {
        const double root = 1 - std::pow(plan.beta2, static_cast<double>(rates.step));
        const double epsilon = is_in_rate ? plan.epsilon / std::sqrt(root) : plan.epsilon;
        op(p.value, p.grad, p.slots[0], p.slots[1],
           {rates.lr, plan.beta1, plan.beta2, epsilon, p.weight_decay, rates.step, p.grad_factor},
           formula);
      }};
}

}  // namespace

void formulas::adam(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a) {
  by_paper<Decay::kInGradient>(w, grad, m, v, a);
}

void formulas::adamw(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a) {
  by_paper<Decay::kOfWeight>(w, grad, m, v, a);
}

void update_by_adamw(Tensor& w, const Tensor& grad, Tensor& m, Tensor& v, const ops::AdamWArgs& a) {
  ops::adamw(w, grad, m, v, a, by_aten<Decay::kOfWeight>);
}

Rule make_adam(const OptimizerPlan& plan) {
  return rule_of(plan, ops::adam, by_aten<Decay::kInGradient>);
}
Rule make_adamw(const OptimizerPlan& plan) {
  return rule_of(plan, ops::adamw, by_aten<Decay::kOfWeight>);
}

}  // namespace kuafu
