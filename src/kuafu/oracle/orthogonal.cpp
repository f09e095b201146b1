// SPDX-License-Identifier: Apache-2.0
//
// Newton-Schulz, and its rounding. X = U / |U| = P S Q^T, (R, C), R <= C. With p(x) = a x + b x^3 +
// c x^5 every iterate is an odd polynomial of the dilation [[0, X], [X^T, 0]], whose eigenvalues are
// +-s and C - R zeros. An error E of an iterate changes what f, the iterations after it, give by
//     |D o (P^T E Q)|, D the divided differences of f on those eigenvalues
//                    [Daletskii-Krein; Higham, Functions of Matrices, theorem 3.11; to first order]
// so by at most max|p'| |E| an iteration, 480 in five: but few errors lie where D is so large. So E
// is followed direction by direction: with K = P^T E Q, f[s_i, s_j] multiplies (K_ij + K_ji) / 2,
// f[s_i, -s_j] (K_ij - K_ji) / 2, and f(s_i) / s_i what lies outside of Q.
//     E          roundings of at most `unit`, independent, of mean 0: variances add, in every basis
//                alike. A product of K terms has K (|x| |y|)^2: gamma with sqrt(K)
//                                            [Higham & Mary, SIAM J. Sci. Comput. 41, 2019]
//     X          of U itself, the quotient, and, of all elements alike, the norm: R C / 4 + 1
//     X X^T      K = C. q(A) = b A + c A^2 has the divided differences b + c (s_i^2 + s_j^2)
//     q          K = R, and its products; X takes what is in it on, column j times s_j
//     a X + q X  K = R, and its products
// kDeviations roots of the sum are 6 to 80 times what runs are off by (orthogonal_test.cpp), as few
// roundings are as large as `unit` and sums of random signs are sqrt(K) below |x| |y|. That is 100
// from some hundreds of rows on, where all s are alike and D is nearly 0 for all other errors.

#include "kuafu/oracle/orthogonal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>

namespace kuafu::oracle {
namespace {

using at::Tensor;

constexpr double kLeastNorm = 1e-7, kDeviations = 8;
constexpr size_t kIterations = 5;
using Quintic = std::array<double, 3>;  // a, b, c

/// X <- a X + b (X X^T) X + c (X X^T)^2 X, five times, from X = U / |U|
///            [Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024]
/// or by an a, b, c of each iteration, on X / 1.01
///                             [Amsel et al., arXiv 2505.16932, algorithm 1 and its published listing]
std::array<Quintic, kIterations> quintics(const OptimizerPlan& plan) {
  std::array<Quintic, kIterations> all = {
      {{8.28721201814563, -23.595886519098837, 17.300387312530933},
       {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
       {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
       {3.3184196573706015, -2.488488024314874, 0.51004894012372},
       {2.300652019954817, -1.6689039845747493, 0.4188073119525673}}};
  for (auto& [a, b, c] : all) {
    if (plan.coefficients == "polar") {
      a /= 1.01, b /= std::pow(1.01, 3), c /= std::pow(1.01, 5);
    } else {
      a = 3.4445, b = -4.7750, c = 2.0315;
    }
  }
  return all;
}

/// What U is divided by: the listing of Amsel et al. has 1.01 here too.
Tensor norm_of_start(const OptimizerPlan& plan, const Tensor& u) {
  return (plan.coefficients == "polar" ? 1.01 : 1.0) * u.square().sum().sqrt() + kLeastNorm;
}

Tensor newton_schulz(const OptimizerPlan& plan, const Tensor& u) {
  if (u.size(0) > u.size(1)) return newton_schulz(plan, u.t()).t();
  Tensor x = u / norm_of_start(plan, u);
  for (const auto& [a, b, c] : quintics(plan)) {
    const Tensor gram = x.mm(x.t());
    x = a * x + b * gram.mm(x) + c * gram.mm(gram.mm(x));
  }
  return x;
}

/// f(s) and f'(s) of the iterations from `first` on.
struct Rest {
  Tensor f, slope;
};
Rest rest_of(const Tensor& s, const std::array<Quintic, kIterations>& all, size_t first) {
  Rest r{s, at::ones_like(s)};
  for (size_t k = first; k < all.size(); ++k) {
    const auto& [a, b, c] = all[k];
    const Tensor y = r.f.square();
    r.slope = r.slope * (a + 3 * b * y + 5 * c * y.square());
    r.f = r.f * (a + b * y + c * y.square());
  }
  return r;
}
/// f[s_i, t_j], the slope at s_i where they are too near each other to tell.
Tensor divided(const Tensor& s, const Tensor& t, const Tensor& f, const Tensor& of_t,
               const Tensor& slope) {
  const Tensor far = s.unsqueeze(1) - t;
  const Tensor is_near = far.abs().le(1e-7 * (s.abs().unsqueeze(1) + t.abs() + 1e-3));
  return at::where(is_near, slope.unsqueeze(1),
                   (f.unsqueeze(1) - of_t) / at::where(is_near, at::ones_like(far), far));
}

/// Variances of the elements of A B.
Tensor of_product(const Tensor& a, const Tensor& b) {
  return static_cast<double>(a.size(1)) * a.abs().mm(b.abs()).square();
}

/// Of one wide matrix in f64, by variances over unit^2.
class Variances {
 public:
  Variances(const OptimizerPlan& plan, const Tensor& u, const Tensor& spread, double unit)
      : all_(quintics(plan)) {
    const Tensor norm = norm_of_start(plan, u);
    x_ = u / norm;
    sum_ = 0 * norm;  // without a bound where u is no number
    if (!x_.isfinite().all().item<bool>()) return;
    Tensor left, right;
    std::tie(left, s_, right) = at::linalg_svd(x_, false);
    left2_ = left.square();
    right2_ = right.square().t();
    const Tensor none = at::zeros({}, u.options());
    add(x_.square() + (spread / (norm * unit)).square(), none, 0);
    const Tensor all_alike = rest_of(s_, all_, 0).slope * s_;
    sum_ = sum_ + (0.25 * static_cast<double>(u.numel()) + 1) * all_alike.square().sum();
    for (size_t k = 0; k < all_.size(); ++k) iterate(k);
  }
  Tensor sum() const { return sum_; }

 private:
  void iterate(size_t k) {
    const auto& [a, b, c] = all_[k];
    const Tensor gram = x_.mm(x_.t()), square = gram.mm(gram), q = b * gram + c * square;
    const Tensor y = s_.square(), differences = b + c * (y.unsqueeze(1) + y);
    const Tensor of_gram = differences.square() * left2_.t().mm(of_product(x_, x_.t())).mm(left2_);
    const Tensor of_q =
        c * c * of_product(gram, gram) + (b * gram).square() + (c * square).square();
    const Tensor in_columns = (of_gram + left2_.t().mm(of_q).mm(left2_)) * y;
    const Tensor last = of_product(q, x_) + (a * x_).square() + q.mm(x_).square();
    x_ = a * x_ + q.mm(x_);
    s_ = s_ * (a + b * y + c * y.square());
    add(last, in_columns, k + 1);
  }
  /// Of an iterate's elements, and of what is known in the basis of singular vectors.
  void add(const Tensor& elements, const Tensor& in_basis, size_t first) {
    const Tensor rows = left2_.t().mm(elements), within = rows.mm(right2_);
    const Tensor outside = (rows.sum(1) - within.sum(1)).clamp_min(0), inside = within + in_basis;
    const Rest r = rest_of(s_, all_, first);
    const Tensor plus = divided(s_, s_, r.f, r.f, r.slope);
    const Tensor minus = divided(s_, -s_, r.f, -r.f, r.slope);
    const Tensor zero = at::zeros({1}, s_.options());
    const Tensor by_zero = divided(s_, zero, r.f, zero, r.slope).squeeze(1);
    const Tensor both = (inside + inside.t()) / 4 * (plus.square() + minus.square());
    sum_ = sum_ + both.sum() + (by_zero.square() * outside).sum();
  }

  const std::array<Quintic, kIterations> all_;
  Tensor x_, s_, left2_, right2_;
  Tensor sum_;
};

/// f(matrix, index) of each matrix that a weight holds, times its scale: sqrt(max(1, out / in)), or
/// 0.2 sqrt(max(in, out))                                          [Liu et al., arXiv 2502.16982]
Tensor of_matrices(const OptimizerPlan& plan, const std::vector<Tensor>& given,
                   const Weight& weight,
                   const std::function<Tensor(const std::vector<Tensor>&)>& f) {
  const bool is_by_size = plan.matrix_scale == "size";
  const Tensor& u = given.at(0);
  // (experts, in, turns, fused, run): the columns of a matrix are those of all turns.
  const int64_t experts = weight.is_stacked ? u.size(0) : 1, in = u.size(-2);
  const int64_t run = weight.fused == 1 ? u.size(-1) : weight.run;
  const std::vector<int64_t> split = {experts, in, -1, weight.fused, run};
  Tensor out = at::empty_like(u.reshape(split));
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t part = 0; part < weight.fused; ++part) {
      std::vector<Tensor> matrices;
      for (const Tensor& t : given) {
        matrices.push_back(t.reshape(split)[e].select(2, part).reshape({in, -1}));
      }
      const auto rows = static_cast<double>(in), columns = static_cast<double>(matrices[0].size(1));
      const double scale = is_by_size ? 0.2 * std::sqrt(std::max(rows, columns))
                                      : std::sqrt(std::max(1.0, columns / rows));
      const Tensor to = out[e].select(2, part);
      to.copy_((f(matrices) * scale).expand_as(matrices[0]).reshape(to.sizes()));
    }
  }
  return out.reshape(u.sizes());
}

}  // namespace

Tensor orthogonal_step(const OptimizerPlan& plan, const Tensor& u, const Weight& weight) {
  return of_matrices(plan, {u}, weight,
                     [&](const std::vector<Tensor>& m) { return newton_schulz(plan, m[0]); });
}

Tensor orthogonal_error(const OptimizerPlan& plan, const Tensor& u, const Tensor& spread,
                        const Weight& weight, double unit) {
  return of_matrices(plan, {u, spread}, weight, [&](const std::vector<Tensor>& m) {
    const bool is_tall = m[0].size(0) > m[0].size(1);
    const Variances v(plan, is_tall ? m[0].t() : m[0], is_tall ? m[1].t() : m[1], unit);
    return kDeviations * unit * v.sum().sqrt();
  });
}

}  // namespace kuafu::oracle
