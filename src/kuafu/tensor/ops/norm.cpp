// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/card.h"
#include "kuafu/tensor/ops/library.h"
#include "kuafu/tensor/ops/norm.h"

namespace kuafu {
namespace {

NormResults layer_norm_cpu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           double epsilon) {
  const Tensor in = widened(x), w = widened(weight), b = widened(bias);
  const kernels::RowExtents rows = rows_of(x);
  const Tensor y = at::empty(x.sizes(), in.options());
  const Tensor mean = at::empty({rows.rows}, in.options()), rstd = at::empty_like(mean);
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::layer_norm(
        rows, kernels::NormForward<T>{in.const_data_ptr<T>(), w.const_data_ptr<T>(),
                                      b.const_data_ptr<T>(), epsilon, y.mutable_data_ptr<T>(),
                                      mean.mutable_data_ptr<T>(), rstd.mutable_data_ptr<T>()});
  });
  return {y.to(x.scalar_type()), mean, rstd};
}

/// What ATen's layer norm is given: on a GPU t itself, whose statistics are then f32 for half
/// precision; on a CPU they would be of t's type.
Tensor for_aten(const Tensor& t) { return t.is_cpu() ? widened(t) : t; }

/// Whether the kernel of a card takes these.
bool is_for_card(const Tensor& x, const Tensor& weight) {
  return has_card_kernel(x) && x.numel() > 0 && weight.scalar_type() == x.scalar_type();
}

NormResults layer_norm_on_card(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               double epsilon) {
  const Tensor in = x.contiguous(), w = weight.contiguous(), b = bias.contiguous();
  const Tensor y = at::empty(x.sizes(), x.options());
  const Tensor mean = at::empty({rows_of(x).rows}, x.options().dtype(accumulator(x)));
  const Tensor rstd = at::empty_like(mean);
  check_started(kernels::card::layer_norm(
                    matrix_of(in),
                    {in.const_data_ptr(), w.const_data_ptr(), b.const_data_ptr(), epsilon,
                     y.mutable_data_ptr(), mean.mutable_data_ptr(), rstd.mutable_data_ptr()},
                    card_stream_of(in)),
                "layer norm");
  return {y, mean, rstd};
}

NormResults layer_norm_backward_on_card(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                        const Tensor& rstd, const Tensor& weight,
                                        const std::optional<Tensor>& residual) {
  const Tensor d = dy.contiguous(), in = x.contiguous(), w = weight.contiguous();
  const Tensor beside = residual ? residual->contiguous() : Tensor();
  const Tensor dx = at::empty(x.sizes(), x.options());
  const Tensor dw = at::empty(weight.sizes(), weight.options()), db = at::empty_like(dw);
  const Tensor partial = at::empty({2, kernels::card::kRowParts, x.size(-1)}, mean.options());
  check_started(kernels::card::layer_norm_backward(
                    matrix_of(in),
                    {d.const_data_ptr(), in.const_data_ptr(), mean.const_data_ptr(),
                     rstd.const_data_ptr(), w.const_data_ptr(),
                     beside.defined() ? beside.const_data_ptr() : nullptr, dx.mutable_data_ptr(),
                     dw.mutable_data_ptr(), db.mutable_data_ptr(), partial.mutable_data_ptr()},
                    card_stream_of(in)),
                "the gradient of layer norm");
  return {dx, dw, db};
}

NormResults layer_norm_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            double epsilon) {
  if (is_for_card(x, weight)) return layer_norm_on_card(x, weight, bias, epsilon);
  const auto [y, mean, rstd] =
      at::native_layer_norm(for_aten(x), {x.size(-1)}, for_aten(weight), for_aten(bias), epsilon);
  return {y.to(x.scalar_type()), mean.view(-1), rstd.view(-1)};
}

NormResults layer_norm_meta(const Tensor& x, const Tensor&, const Tensor&, double) {
  const auto stats = x.options().dtype(accumulator(x));
  const int64_t rows = x.numel() / x.size(-1);
  return {at::empty(x.sizes(), x.options()), at::empty({rows}, stats), at::empty({rows}, stats)};
}

/// (R) statistics as ATen wants them: x's sizes with a last dim of one.
Tensor like_rows(const Tensor& stat, const Tensor& x) {
  Shape shape = shape_of(x);
  shape.back() = 1;
  return stat.view(shape);
}

NormResults layer_norm_backward_cpu(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                    const Tensor& rstd, const Tensor& weight,
                                    const std::optional<Tensor>& residual) {
  return norm_backward_cpu(dy, x, mean, rstd, weight, {}, x.size(-1), residual);
}

NormResults layer_norm_backward_cuda(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& weight,
                                     const std::optional<Tensor>& residual) {
  if (is_for_card(x, weight)) {
    return layer_norm_backward_on_card(dy, x, mean, rstd, weight, residual);
  }
  // The weight stands for the bias too: only its type and size are read.
  const Tensor w = for_aten(weight);
  auto [dx, dw, db] =
      at::native_layer_norm_backward(for_aten(dy), for_aten(x), {x.size(-1)}, like_rows(mean, x),
                                     like_rows(rstd, x), w, w, {true, true, true});
  if (residual) dx.add_(*residual);
  const auto type = weight.scalar_type();
  return {dx.to(x.scalar_type()), dw.to(type), db.to(type)};
}

NormResults layer_norm_backward_meta(const Tensor&, const Tensor& x, const Tensor&, const Tensor&,
                                     const Tensor& weight, const std::optional<Tensor>&) {
  return {at::empty(x.sizes(), x.options()), at::empty(weight.sizes(), weight.options()),
          at::empty(weight.sizes(), weight.options())};
}

}  // namespace

void add_norm_ops(OpLibrary& lib) {
  lib.add(
      "layer_norm(Tensor x, Tensor weight, Tensor bias, float epsilon) -> "
      "(Tensor, Tensor, Tensor)",
      "layer_norm", &layer_norm_cpu, &layer_norm_cuda, &layer_norm_meta);
  lib.add(
      "layer_norm_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor weight, "
      "Tensor? residual) -> (Tensor, Tensor, Tensor)",
      "layer_norm_backward", &layer_norm_backward_cpu, &layer_norm_backward_cuda,
      &layer_norm_backward_meta);
}

namespace ops {

NormOut layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon) {
  static const auto op =
      find_op<NormResults(const Tensor&, const Tensor&, const Tensor&, double)>("layer_norm");
  const OpScope scope;
  const auto [y, mean, rstd] = op.call(x, weight, bias, epsilon);
  for (const Tensor& t : {y, mean, rstd}) scope.keep(t);
  scope.work(0, bytes_of(x, weight, bias, y, mean, rstd));
  return {y, mean, rstd};
}

NormGrads layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight, const Tensor& residual) {
  static const auto op =
      find_op<NormResults(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const std::optional<Tensor>&)>("layer_norm_backward");
  const OpScope scope;
  const auto [dx, dw, db] = op.call(dy, x, mean, rstd, weight, maybe(residual));
  for (const Tensor& t : {dx, dw, db}) scope.keep(t);
  scope.work(0, bytes_of(dy, x, mean, rstd, weight, residual, dx, dw, db));
  return {dx, dw, db};
}

}  // namespace ops
}  // namespace kuafu
