// SPDX-License-Identifier: Apache-2.0
//
// RMS norm, whole and in halves around one summing all-reduce of the last dim's H elements:
//   forward   moment = sum x^2 over my part          rstd = (moment / H + epsilon)^(-1/2)
//   backward  moment = sum g xhat, g = dy w          dx = rstd (g - xhat moment / H)
// and the residual gradient is added to dx where there is one. Moments are f64 for every type of x.

#include <ATen/ATen.h>

#include <tuple>

#include "kuafu/kernels/kernels.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"
#include "kuafu/tensor/ops/norm.h"

namespace kuafu {
namespace {

using Two = std::tuple<Tensor, Tensor>;

Tensor new_rms_moments(const Tensor& x) {
  return at::empty({rows_of(x).rows}, x.options().dtype(at::kDouble));
}

Tensor rms_moments_cpu(const Tensor& x) {
  const Tensor in = widened(x), moments = new_rms_moments(x);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::rms_moments(rows_of(x), in.const_data_ptr<T>(), moments.mutable_data_ptr<double>());
  });
  return moments;
}

Tensor rms_moments_plain(const Tensor& x) { return f64_rows(x).square().sum(1); }

/// `moments` undefined: x holds the whole dim.
Two forward_cpu(const Tensor& x, const Tensor& moments, const Tensor& weight, int64_t hidden,
                double epsilon) {
  const Tensor in = widened(x), w = widened(weight);
  const Tensor y = at::empty(x.sizes(), in.options());
  const Tensor rstd = at::empty({rows_of(x).rows}, in.options());
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const kernels::RmsForward<T> args{
        in.const_data_ptr<T>(),
        w.const_data_ptr<T>(),
        moments.defined() ? moments.const_data_ptr<double>() : nullptr,
        hidden,
        epsilon,
        y.mutable_data_ptr<T>(),
        rstd.mutable_data_ptr<T>()};
    kernels::rms_norm(rows_of(x), args);
  });
  return {y.to(x.scalar_type()), rstd};
}

Two norm_cpu(const Tensor& x, const Tensor& weight, double epsilon) {
  return forward_cpu(x, {}, weight, x.size(-1), epsilon);
}

Two rms_apply_plain(const Tensor& x, const Tensor& moments, const Tensor& weight, int64_t hidden,
                    double epsilon) {
  const Tensor rstd = (moments / static_cast<double>(hidden) + epsilon).rsqrt_();
  const Tensor y = (f64_rows(x) * rstd.unsqueeze(1)).mul_(weight);
  return {y.to(x.scalar_type()).view(x.sizes()), rstd.to(accumulator(x))};
}

Two norm_plain(const Tensor& x, const Tensor& weight, double epsilon) {
  return rms_apply_plain(x, rms_moments_plain(x), weight, x.size(-1), epsilon);
}

Two norm_meta(const Tensor& x, const Tensor&, double) {
  return {at::empty(x.sizes(), x.options()),
          at::empty({rows_of(x).rows}, x.options().dtype(accumulator(x)))};
}

Two rms_apply_meta(const Tensor& x, const Tensor&, const Tensor& weight, int64_t, double epsilon) {
  return norm_meta(x, weight, epsilon);
}

Tensor rms_backward_moments_cpu(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                                const Tensor& weight) {
  const Tensor g = widened(dy), in = widened(x), w = widened(weight), moments = new_rms_moments(x);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::RmsBackward<T> args{};
    args.dy = g.const_data_ptr<T>();
    args.x = in.const_data_ptr<T>();
    args.rstd = rstd.const_data_ptr<T>();
    args.w = w.const_data_ptr<T>();
    kernels::rms_backward_moments(rows_of(x), args, moments.mutable_data_ptr<double>());
  });
  return moments;
}

Tensor rms_backward_moments_plain(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                                  const Tensor& weight) {
  return (f64_rows(dy) * weight).mul_(f64_rows(x)).sum(1).mul_(rstd);
}

Tensor rms_backward_moments_meta(const Tensor&, const Tensor& x, const Tensor&, const Tensor&) {
  return new_rms_moments(x);
}

/// `moments` undefined: x holds the whole dim.
Two rms_backward_apply_cpu(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                           const Tensor& weight, const Tensor& moments, int64_t hidden,
                           const std::optional<Tensor>& residual) {
  const Tensor g = widened(dy), in = widened(x), w = widened(weight);
  const Tensor beside = residual ? widened(*residual) : Tensor();
  const Tensor dx = at::empty(x.sizes(), in.options());
  const Tensor dw = at::zeros({x.size(-1)}, x.options().dtype(at::kDouble));
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    const kernels::RmsBackward<T> args{
        g.const_data_ptr<T>(),
        in.const_data_ptr<T>(),
        rstd.const_data_ptr<T>(),
        w.const_data_ptr<T>(),
        moments.defined() ? moments.const_data_ptr<double>() : nullptr,
        hidden,
        beside.defined() ? beside.const_data_ptr<T>() : nullptr,
        dx.mutable_data_ptr<T>(),
        dw.mutable_data_ptr<double>()};
    kernels::rms_backward(rows_of(x), args);
  });
  return {dx.to(x.scalar_type()), dw.to(weight.scalar_type())};
}

Two backward_cpu(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& weight,
                 const std::optional<Tensor>& residual) {
  return rms_backward_apply_cpu(dy, x, rstd, weight, {}, x.size(-1), residual);
}

Two rms_backward_apply_plain(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                             const Tensor& weight, const Tensor& moments, int64_t hidden,
                             const std::optional<Tensor>& residual) {
  const Tensor g = f64_rows(dy), s = rstd.unsqueeze(1), xhat = f64_rows(x) * s;
  const Tensor mean = (moments / static_cast<double>(hidden)).unsqueeze(1);
  const Tensor dx = (g * weight - xhat * mean).mul_(s);
  if (residual) dx.add_(f64_rows(*residual));
  return {dx.to(x.scalar_type()).view(x.sizes()), (g * xhat).sum(0).to(weight.scalar_type())};
}

Two backward_plain(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& weight,
                   const std::optional<Tensor>& residual) {
  return rms_backward_apply_plain(
      dy, x, rstd, weight, rms_backward_moments_plain(dy, x, rstd, weight), x.size(-1), residual);
}

Two backward_meta(const Tensor&, const Tensor& x, const Tensor&, const Tensor& weight,
                  const std::optional<Tensor>&) {
  return {at::empty(x.sizes(), x.options()), at::empty(weight.sizes(), weight.options())};
}

Two rms_backward_apply_meta(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                            const Tensor& weight, const Tensor&, int64_t,
                            const std::optional<Tensor>& residual) {
  return backward_meta(dy, x, rstd, weight, residual);
}

}  // namespace

void add_rms_norm_ops(OpLibrary& lib) {
  lib.add("rms_norm(Tensor x, Tensor weight, float epsilon) -> (Tensor, Tensor)", "rms_norm",
          &norm_cpu, &norm_plain, &norm_meta);
  lib.add(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor rstd, Tensor weight, Tensor? residual) -> "
      "(Tensor, Tensor)",
      "rms_norm_backward", &backward_cpu, &backward_plain, &backward_meta);
  lib.add("rms_moments(Tensor x) -> Tensor", "rms_moments", &rms_moments_cpu, &rms_moments_plain,
          &new_rms_moments);
  lib.add(
      "rms_apply(Tensor x, Tensor moments, Tensor weight, int hidden, float epsilon) -> "
      "(Tensor, Tensor)",
      "rms_apply", &forward_cpu, &rms_apply_plain, &rms_apply_meta);
  lib.add("rms_backward_moments(Tensor dy, Tensor x, Tensor rstd, Tensor weight) -> Tensor",
          "rms_backward_moments", &rms_backward_moments_cpu, &rms_backward_moments_plain,
          &rms_backward_moments_meta);
  lib.add(
      "rms_backward_apply(Tensor dy, Tensor x, Tensor rstd, Tensor weight, Tensor moments, "
      "int hidden, Tensor? residual) -> (Tensor, Tensor)",
      "rms_backward_apply", &rms_backward_apply_cpu, &rms_backward_apply_plain,
      &rms_backward_apply_meta);
}

namespace ops {

RmsOut rms_norm(const Tensor& x, const Tensor& weight, double epsilon) {
  static const auto op = find_op<Two(const Tensor&, const Tensor&, double)>("rms_norm");
  const OpScope scope;
  const auto [y, rstd] = op.call(x, weight, epsilon);
  for (const Tensor& t : {y, rstd}) scope.keep(t);
  scope.work(0, bytes_of(x, weight, y, rstd));
  return {y, rstd};
}

RmsGrads rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                           const Tensor& weight, const Tensor& residual) {
  static const auto op = find_op<Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                     const std::optional<Tensor>&)>("rms_norm_backward");
  const OpScope scope;
  const auto [dx, dw] = op.call(dy, x, rstd, weight, maybe(residual));
  for (const Tensor& t : {dx, dw}) scope.keep(t);
  scope.work(0, bytes_of(dy, x, rstd, weight, residual, dx, dw));
  return {dx, dw};
}

Tensor rms_moments(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("rms_moments");
  const OpScope scope;
  const Tensor moments = scope.keep(op.call(x));
  scope.work(0, bytes_of(x, moments));
  return moments;
}

RmsOut rms_apply(const Tensor& x, const Tensor& moments, const Tensor& weight, int64_t hidden,
                 double epsilon) {
  static const auto op =
      find_op<Two(const Tensor&, const Tensor&, const Tensor&, int64_t, double)>("rms_apply");
  const OpScope scope;
  const auto [y, rstd] = op.call(x, moments, weight, hidden, epsilon);
  for (const Tensor& t : {y, rstd}) scope.keep(t);
  scope.work(0, bytes_of(x, moments, weight, y, rstd));
  return {y, rstd};
}

Tensor rms_backward_moments(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                            const Tensor& weight) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
          "rms_backward_moments");
  const OpScope scope;
  const Tensor moments = scope.keep(op.call(dy, x, rstd, weight));
  scope.work(0, bytes_of(dy, x, rstd, weight, moments));
  return moments;
}

RmsGrads rms_backward_apply(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                            const Tensor& weight, const Tensor& moments, int64_t hidden,
                            const Tensor& residual) {
  static const auto op =
      find_op<Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  int64_t, const std::optional<Tensor>&)>("rms_backward_apply");
  const OpScope scope;
  const auto [dx, dw] = op.call(dy, x, rstd, weight, moments, hidden, maybe(residual));
  for (const Tensor& t : {dx, dw}) scope.keep(t);
  scope.work(0, bytes_of(dy, x, rstd, weight, moments, residual, dx, dw));
  return {dx, dw};
}

}  // namespace ops
}  // namespace kuafu
