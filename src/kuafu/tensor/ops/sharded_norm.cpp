// SPDX-License-Identifier: Apache-2.0
//
// Layer norm over a dim of H elements that is sharded, in halves around one summing all-reduce:
//   forward   moments = (sum x, sum x^2) over my part      mean = m0 / H, var = m1 / H - mean^2
//   backward  moments = (sum g, sum g xhat), g = dy w      dx = rstd (g - m0 / H - xhat m1 / H)
// and the residual gradient is added to dx where there is one.
// Moments are f64 for every type of x. Subtracting the squares then costs (1 + mean^2 / var) 2^-53
// of var: below f32's rounding while |mean| < 1e4 std, and 1e-12 of an f64 result while |mean| < 60
// std.

#include <ATen/ATen.h>

#include <tuple>

#include "kuafu/kernels/kernels.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"
#include "kuafu/tensor/ops/norm.h"

namespace kuafu {

Tensor f64_rows(const Tensor& t) { return t.reshape({-1, t.size(-1)}).to(at::kDouble); }

namespace {

Tensor new_moments(const Tensor& x) {
  return at::empty({rows_of(x).rows, 2}, x.options().dtype(at::kDouble));
}

Tensor moments_cpu(const Tensor& x) {
  const Tensor in = widened(x), moments = new_moments(x);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::norm_moments(rows_of(x), in.const_data_ptr<T>(), moments.mutable_data_ptr<double>());
  });
  return moments;
}

Tensor moments_plain(const Tensor& x) {
  const Tensor in = f64_rows(x);
  return at::stack({in.sum(1), in.square().sum(1)}, 1);
}

/// mean and rstd (R) from moments over all shards.
std::pair<Tensor, Tensor> stats_of(const Tensor& moments, int64_t hidden, double epsilon) {
  const Tensor scaled = moments / static_cast<double>(hidden);
  const Tensor mean = scaled.select(1, 0);
  const Tensor var = (scaled.select(1, 1) - mean.square()).clamp_min_(0);
  return {mean, (var + epsilon).rsqrt_()};
}

NormResults apply_cpu(const Tensor& x, const Tensor& moments, const Tensor& weight,
                      const Tensor& bias, int64_t hidden, double epsilon) {
  const auto [mean64, rstd64] = stats_of(moments, hidden, epsilon);
  const auto type = accumulator(x);
  const Tensor mean = mean64.to(type, false, true), rstd = rstd64.to(type);
  const Tensor in = widened(x), w = widened(weight), b = widened(bias);
  const Tensor y = at::empty(x.sizes(), in.options());
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::norm_apply(rows_of(x), in.const_data_ptr<T>(), mean.const_data_ptr<T>(),
                        rstd.const_data_ptr<T>(), w.const_data_ptr<T>(), b.const_data_ptr<T>(),
                        y.mutable_data_ptr<T>());
  });
  return {y.to(x.scalar_type()), mean, rstd};
}

NormResults apply_plain(const Tensor& x, const Tensor& moments, const Tensor& weight,
                        const Tensor& bias, int64_t hidden, double epsilon) {
  const auto [mean, rstd] = stats_of(moments, hidden, epsilon);
  const auto type = accumulator(x);
  const Tensor xhat = (f64_rows(x) - mean.unsqueeze(1)).mul_(rstd.unsqueeze(1));
  const Tensor y = (xhat * weight + bias).to(x.scalar_type()).view(x.sizes());
  return {y, mean.to(type, false, true), rstd.to(type)};
}

NormResults apply_meta(const Tensor& x, const Tensor& moments, const Tensor&, const Tensor&,
                       int64_t, double) {
  const auto stats = x.options().dtype(accumulator(x));
  return {at::empty(x.sizes(), x.options()), at::empty({moments.size(0)}, stats),
          at::empty({moments.size(0)}, stats)};
}

Tensor backward_moments_cpu(const Tensor& dy, const Tensor& x, const Tensor& mean,
                            const Tensor& rstd, const Tensor& weight) {
  const Tensor g = widened(dy), in = widened(x), w = widened(weight), moments = new_moments(x);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::NormBackward<T> args{};
    args.dy = g.const_data_ptr<T>();
    args.x = in.const_data_ptr<T>();
    args.mean = mean.const_data_ptr<T>();
    args.rstd = rstd.const_data_ptr<T>();
    args.w = w.const_data_ptr<T>();
    kernels::norm_backward_moments(rows_of(x), args, moments.mutable_data_ptr<double>());
  });
  return moments;
}

/// xhat in f64 from the saved statistics.
Tensor normalised(const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  return (f64_rows(x) - mean.unsqueeze(1)).mul_(rstd.unsqueeze(1));
}

Tensor backward_moments_plain(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight) {
  const Tensor g = f64_rows(dy) * weight;
  return at::stack({g.sum(1), (g * normalised(x, mean, rstd)).sum(1)}, 1);
}

Tensor backward_moments_meta(const Tensor&, const Tensor& x, const Tensor&, const Tensor&,
                             const Tensor&) {
  return new_moments(x);
}

NormResults backward_apply_plain(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                 const Tensor& rstd, const Tensor& weight, const Tensor& moments,
                                 int64_t hidden, const std::optional<Tensor>& residual) {
  const Tensor g = f64_rows(dy), xhat = normalised(x, mean, rstd);
  const Tensor scaled = moments / static_cast<double>(hidden);
  const Tensor dx =
      (g * weight - scaled.narrow(1, 0, 1) - xhat * scaled.narrow(1, 1, 1)).mul_(rstd.unsqueeze(1));
  if (residual) dx.add_(f64_rows(*residual));
  const auto type = weight.scalar_type();
  return {dx.to(x.scalar_type()).view(x.sizes()), (g * xhat).sum(0).to(type), g.sum(0).to(type)};
}

NormResults backward_apply_meta(const Tensor&, const Tensor& x, const Tensor&, const Tensor&,
                                const Tensor& weight, const Tensor&, int64_t,
                                const std::optional<Tensor>&) {
  return {at::empty(x.sizes(), x.options()), at::empty(weight.sizes(), weight.options()),
          at::empty(weight.sizes(), weight.options())};
}

}  // namespace

NormResults norm_backward_cpu(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight, const Tensor& moments,
                              int64_t hidden, const std::optional<Tensor>& residual) {
  const Tensor g = widened(dy), in = widened(x), w = widened(weight);
  const Tensor beside = residual ? widened(*residual) : Tensor();
  const Tensor dx = at::empty(x.sizes(), in.options());
  const Tensor sums = at::zeros({2, x.size(-1)}, x.options().dtype(at::kDouble));
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const kernels::NormBackward<T> args{
        g.const_data_ptr<T>(),
        in.const_data_ptr<T>(),
        mean.const_data_ptr<T>(),
        rstd.const_data_ptr<T>(),
        w.const_data_ptr<T>(),
        moments.defined() ? moments.const_data_ptr<double>() : nullptr,
        hidden,
        beside.defined() ? beside.const_data_ptr<T>() : nullptr,
        dx.mutable_data_ptr<T>(),
        sums.mutable_data_ptr<double>(),
        sums.mutable_data_ptr<double>() + x.size(-1)};
    kernels::norm_backward(rows_of(x), args);
  });
  const auto type = weight.scalar_type();
  // Copies: the two rows of `sums` share a storage.
  return {dx.to(x.scalar_type()), sums[0].to(type, false, true), sums[1].to(type, false, true)};
}

void add_sharded_norm_ops(OpLibrary& lib) {
  lib.add("norm_moments(Tensor x) -> Tensor", "norm_moments", &moments_cpu, &moments_plain,
          &new_moments);
  lib.add(
      "norm_apply(Tensor x, Tensor moments, Tensor weight, Tensor bias, int hidden, "
      "float epsilon) -> (Tensor, Tensor, Tensor)",
      "norm_apply", &apply_cpu, &apply_plain, &apply_meta);
  lib.add(
      "norm_backward_moments(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor weight) -> "
      "Tensor",
      "norm_backward_moments", &backward_moments_cpu, &backward_moments_plain,
      &backward_moments_meta);
  lib.add(
      "norm_backward_apply(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor weight, "
      "Tensor moments, int hidden, Tensor? residual) -> (Tensor, Tensor, Tensor)",
      "norm_backward_apply", &norm_backward_cpu, &backward_apply_plain, &backward_apply_meta);
}

namespace ops {

Tensor norm_moments(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("norm_moments");
  const OpScope scope;
  const Tensor moments = scope.keep(op.call(x));
  scope.work(0, bytes_of(x, moments));
  return moments;
}

NormOut norm_apply(const Tensor& x, const Tensor& moments, const Tensor& weight, const Tensor& bias,
                   int64_t hidden, double epsilon) {
  static const auto op = find_op<NormResults(const Tensor&, const Tensor&, const Tensor&,
                                             const Tensor&, int64_t, double)>("norm_apply");
  const OpScope scope;
  const auto [y, mean, rstd] = op.call(x, moments, weight, bias, hidden, epsilon);
  for (const Tensor& t : {y, mean, rstd}) scope.keep(t);
  scope.work(0, bytes_of(x, moments, weight, bias, y, mean, rstd));
  return {y, mean, rstd};
}

Tensor norm_backward_moments(const Tensor& dy, const Tensor& x, const Tensor& mean,
                             const Tensor& rstd, const Tensor& weight) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
          "norm_backward_moments");
  const OpScope scope;
  const Tensor moments = scope.keep(op.call(dy, x, mean, rstd, weight));
  scope.work(0, bytes_of(dy, x, mean, rstd, weight, moments));
  return moments;
}

NormGrads norm_backward_apply(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight, const Tensor& moments,
                              int64_t hidden, const Tensor& residual) {
  static const auto op =
      find_op<NormResults(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, int64_t, const std::optional<Tensor>&)>(
          "norm_backward_apply");
  const OpScope scope;
  const auto [dx, dw, db] = op.call(dy, x, mean, rstd, weight, moments, hidden, maybe(residual));
  for (const Tensor& t : {dx, dw, db}) scope.keep(t);
  scope.work(0, bytes_of(dy, x, mean, rstd, weight, moments, residual, dx, dw, db));
  return {dx, dw, db};
}

}  // namespace ops
}  // namespace kuafu
