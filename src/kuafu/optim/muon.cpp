// SPDX-License-Identifier: Apache-2.0
//
// Muon: momentum of a whole matrix, made orthogonal.
//                         [Jordan et al., "Muon: an optimizer for hidden layers in neural networks",
//                          2024, algorithm 2 and its listing; decay as Liu et al., arXiv 2502.16982]
//
//   hidden matrices, each a tensor of the published model, (in, out) = (R, C)
//   1  B = momentum B + g
//   2  U = B, or with Nesterov g + momentum B
//   3  X = U / (|U| + 1e-7), of U^T where R > C
//   4  five times  A = X X^T,  X = a X + (b A + c A^2) X      a, b, c = 3.4445, -4.7750, 2.0315
//   5  w = w - lr (sqrt(max(1, C / R)) X + wd w)
//   all else (vectors, embeddings, heads)
//   6  AdamW with adam_lr, which follows lr's schedule
//
// Singular values of X that were at least 0.002 end between 0.68 and 1.2; smaller ones grow some
// 480 times. A step follows from all of the matrix: a rank that holds a part of it cannot make it.
// State: 1 x matrices, 2 x all else, in their type; half precision: in f32, and a master copy.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/optim/rule.h"

namespace kuafu {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kLeastNorm = 1e-7;
constexpr int kIterations = 5;

/// 3, 4 of all matrices at once, (n, R, C).
Tensor orthogonal(const Tensor& u) {
  const bool is_tall = u.size(1) > u.size(2);
  Tensor x = is_tall ? u.transpose(1, 2) : u;
  x = x / (x.square().sum({1, 2}, true).sqrt() + kLeastNorm);
  for (int i = 0; i < kIterations; ++i) {
    const Tensor a = at::bmm(x, x.transpose(1, 2));
    x = kA * x + at::bmm(kB * a + kC * at::bmm(a, a), x);
  }
  return is_tall ? x.transpose(1, 2) : x;
}

/// The matrices of a parameter that is stacked (E, R, C) or not, side by side or not: (n, R, C).
struct Matrices {
  explicit Matrices(const Param& p) {
    const int64_t columns = p.global.back();
    stacked = p.layers.is_stacked ? p.global[0] : 1;
    rows = p.global[p.global.size() - 2];
    parts = p.layers.parts;
    width = parts == 1 ? columns : p.layers.width;
    turns = columns / (parts * width);
  }
  Tensor apart(const Tensor& t) const {
    return t.view({stacked, rows, turns, parts, width})
        .permute({0, 3, 1, 2, 4})
        .reshape({stacked * parts, rows, turns * width});
  }
  Tensor joined(const Tensor& t, at::IntArrayRef sizes) const {
    return t.reshape({stacked, parts, rows, turns, width}).permute({0, 2, 3, 1, 4}).reshape(sizes);
  }
  double scale() const {
    return std::sqrt(std::max(1.0, static_cast<double>(turns * width) / static_cast<double>(rows)));
  }

  int64_t stacked = 1, rows = 1, turns = 1, parts = 1, width = 1;
};

}  // namespace

Rule make_muon(const OptimizerPlan& plan) {
  check_betas(plan);
  check_momentum(plan);
  KUAFU_REQUIRE(plan.lr > 0, "optimizer.lr = ", plan.lr,
                " of muon, whose schedule adam_lr follows; allowed: above 0");
  const auto matrix = [plan](RulePiece& p, const Rates& rates) {
    const Tensor g = p.grad.to(p.value.scalar_type()) * p.grad_factor;
    Tensor& b = p.slots[0];
    b.mul_(plan.momentum).add_(g);                               // 1
    const Tensor u = plan.nesterov ? g + plan.momentum * b : b;  // 2
    const Matrices of(*p.matrix);
    const Tensor x = of.joined(orthogonal(of.apart(u)), p.value.sizes());  // 3, 4
    p.value.sub_(rates.lr * (of.scale() * x + p.weight_decay * p.value));  // 5
  };
  const auto update = [plan, matrix](RulePiece& p, const Rates& rates, const Tensor&) {
    if (p.matrix != nullptr) return matrix(p, rates);
    ops::adamw(p.value, p.grad, p.slots[0], p.slots[1],
               {plan.adam_lr * (rates.lr / plan.lr), plan.beta1, plan.beta2, plan.epsilon,
                p.weight_decay, rates.step, p.grad_factor});  // 6
  };
  return {.slots = {"m", "v"}, .matrix_slots = {"velocity"}, .update = update};
}

}  // namespace kuafu
