// SPDX-License-Identifier: Apache-2.0
//
// Muon: momentum of a whole matrix, made orthogonal.
//                         [Jordan et al., "Muon: an optimizer for hidden layers in neural networks",
//                          2024, algorithm 2 and its listing; decay as Liu et al., arXiv 2502.16982]
//
//   hidden matrices, each a tensor of the published model, (in, out) = (R, C)
//   1  B = momentum B + g
//   2  U = B, or with Nesterov g + momentum B
//      (all of U comes to one of the ranks that hold parts of it: matrices.h)
//   3  X = U / (|U| + 1e-7), of U^T where R > C; coefficients = "polar": U / (1.01 |U| + 1e-7)
//   4  five times  A = X X^T,  X = a X + (b A + c A^2) X      a, b, c = 3.4445, -4.7750, 2.0315
//      "polar": those of each iteration      [Amsel et al., arXiv 2505.16932, its published listing]
//   5  w = w - lr (sqrt(max(1, C / R)) X + wd w)
//      matrix_scale = "size": 0.2 sqrt(max(R, C))                     [Liu et al., arXiv 2502.16982]
//   all else (vectors, embeddings, heads)
//   6  AdamW with adam_lr, which follows lr's schedule
//
// With constant coefficients singular values of X that were at least 0.002 end between 0.68 and 1.2; smaller ones grow some
// 480 times. R and C are those of the model, without padding.
// State: 1 x matrices, 2 x all else, in their type; half precision: in f32, and a master copy.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/optim/formulas.h"
#include "kuafu/optim/rule.h"

namespace kuafu {
namespace {

constexpr double kLeastNorm = 1e-7, kSizeScale = 0.2;
constexpr int64_t kIterations = 5;
/// What a singular value may be above 1 by, through rounding, without growing in `polar`.
constexpr double kSafety = 1.01;

/// a, b and c of each iteration. U / (1.01 |U| + e) is 1 / 1.01 of U / (|U| + e / 1.01): the first ones
/// have that once more.
std::vector<double> coefficients_of(const OptimizerPlan& plan) {
  constexpr double kPolar[kIterations][3] = {
      {8.28721201814563, -23.595886519098837, 17.300387312530933},
      {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
      {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
      {3.3184196573706015, -2.488488024314874, 0.51004894012372},
      {2.300652019954817, -1.6689039845747493, 0.4188073119525673}};
  const bool is_polar = plan.coefficients == "polar";
  std::vector<double> all;
  for (const auto& [a, b, c] : kPolar) {
    const double safety = all.empty() ? kSafety * kSafety : kSafety;
    all.push_back(is_polar ? a / safety : 3.4445);
    all.push_back(is_polar ? b / std::pow(safety, 3) : -4.7750);
    all.push_back(is_polar ? c / std::pow(safety, 5) : 2.0315);
  }
  return all;
}

/// 3, 4 and the scale of 5.
Tensor orthogonal(const OptimizerPlan& plan, const Tensor& u, const LayerSplit& layers) {
  const auto rows = static_cast<double>(u.size(0));
  const auto columns = static_cast<double>(u.size(1) / layers.parts);
  const double scale = plan.matrix_scale == "size" ? kSizeScale * std::sqrt(std::max(rows, columns))
                                                   : std::sqrt(std::max(1.0, columns / rows));
  return ops::newton_schulz(
      u, {.coefficients = coefficients_of(plan),
          .least_norm = plan.coefficients == "polar" ? kLeastNorm / kSafety : kLeastNorm,
          .parts = layers.parts,
          .width = layers.width,
          .scale = scale});
}

}  // namespace

Rule make_muon(const OptimizerPlan& plan) {
  check_betas(plan);
  check_momentum(plan);
  KUAFU_REQUIRE(plan.lr > 0, "optimizer.lr = ", plan.lr,
                " of muon, whose schedule adam_lr follows; allowed: above 0");
  const auto direction = [plan](RulePiece& p, const Rates&) {
    ops::momentum(p.slots[0], p.grad, plan.momentum, p.grad_factor);  // 1
    if (!plan.nesterov) return p.slots[0];                            // 2
    return ops::momentum_ahead(p.slots[0], p.grad, plan.momentum, p.grad_factor);
  };
  const auto update = [plan](RulePiece& p, const Rates& rates, const Tensor&) {
    if (p.is_matrix) {
      ops::decayed_step(p.value, p.step, rates.lr, p.weight_decay);  // 5
      return;
    }
    update_by_adamw(p.value, p.grad, p.slots[0], p.slots[1],
                    {plan.adam_lr * (rates.lr / plan.lr), plan.beta1, plan.beta2, plan.epsilon,
                     p.weight_decay, rates.step, p.grad_factor});  // 6
  };
  const auto uses = [](const RulePiece& p) {
    return SlotUses{.update = p.is_matrix ? SlotUse::kNone : SlotUse::kChange};
  };
  return {.slots = {"m", "v"},
          .matrix_slots = {"velocity"},
          .direction = direction,
          .has_own_direction = plan.nesterov,
          .slot_uses = uses,
          .whole = [plan](const Tensor& u,
                          const LayerSplit& layers) { return orthogonal(plan, u, layers); },
          .update = update};
}

}  // namespace kuafu
