// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/kernels/kernels.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/bias.h"
#include "kuafu/tensor/ops/card.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

// ATen's sum over rows goes down a few columns at a time, a page further at each row; this one
// reads the rows as they lie.
Tensor sum_rows_cpu(const Tensor& x) {
  const Tensor in = widened(x);
  const Tensor sums = at::zeros({x.size(-1)}, x.options().dtype(at::kDouble));
  by_type(x, [&](auto zero) {
    using T = decltype(zero);
    kernels::sum_rows(rows_of(x), in.const_data_ptr<T>(), sums.mutable_data_ptr<double>());
  });
  return sums.to(x.scalar_type());
}

Tensor sum_rows_on_card(const Tensor& x) {
  const Tensor in = x.contiguous(), sums = at::empty({x.size(-1)}, x.options());
  const Tensor partial =
      at::empty({kernels::card::kRowParts, x.size(-1)}, x.options().dtype(accumulator(x)));
  check_started(
      kernels::card::sum_rows(matrix_of(in), in.const_data_ptr(), partial.mutable_data_ptr(),
                              sums.mutable_data_ptr(), card_stream_of(in)),
      "a sum over rows");
  return sums;
}

void add_bias_aten(const Tensor& y, const Tensor& bias) { y.add_(bias); }

void add_bias_cuda(const Tensor& y, const Tensor& bias) {
  if (!has_card_kernel(y) || y.numel() == 0 || !y.is_contiguous()) return add_bias_aten(y, bias);
  check_started(kernels::card::add_bias(matrix_of(y), y.mutable_data_ptr(),
                                        bias.contiguous().const_data_ptr(), card_stream_of(y)),
                "a bias");
}

void add_bias_meta(const Tensor&, const Tensor&) {}

Tensor sum_rows_plain(const Tensor& x) {
  if (has_card_kernel(x) && x.numel() > 0) return sum_rows_on_card(x);
  return x.reshape({-1, x.size(-1)}).sum(0);
}

Tensor sum_rows_meta(const Tensor& x) { return at::empty({x.size(-1)}, x.options()); }

}  // namespace

void add_sum_ops(OpLibrary& lib) {
  lib.add("sum_rows(Tensor x) -> Tensor", "sum_rows", &sum_rows_cpu, &sum_rows_plain,
          &sum_rows_meta);
  lib.add("add_bias(Tensor(a!) y, Tensor bias) -> ()", "add_bias", &add_bias_aten, &add_bias_cuda,
          &add_bias_meta, CpuKernel::kAten);
}

namespace ops {

Tensor sum_rows(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("sum_rows");
  const OpScope scope;
  const Tensor sum = scope.keep(op.call(x));
  scope.work(0, bytes_of(x, sum));
  return sum;
}

void add_bias(const Tensor& y, const Tensor& bias) {
  static const auto op = find_op<void(const Tensor&, const Tensor&)>("add_bias");
  KUAFU_CHECK(bias.dim() == 1 && y.dim() > 0 && y.size(-1) == bias.size(0) &&
                  y.scalar_type() == bias.scalar_type(),
              "a bias ", to_string(shape_of(bias)), " for ", to_string(shape_of(y)));
  const OpScope scope;
  op.call(y, bias);
  scope.work(0, bytes_of(y, y, bias));
}

}  // namespace ops
}  // namespace kuafu
