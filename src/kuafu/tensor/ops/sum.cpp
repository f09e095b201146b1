// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/kernels/kernels.h"
#include "kuafu/tensor/ops.h"
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

Tensor sum_rows_plain(const Tensor& x) { return x.reshape({-1, x.size(-1)}).sum(0); }

Tensor sum_rows_meta(const Tensor& x) { return at::empty({x.size(-1)}, x.options()); }

}  // namespace

void add_sum_ops(OpLibrary& lib) {
  lib.add("sum_rows(Tensor x) -> Tensor", "sum_rows", &sum_rows_cpu, &sum_rows_plain,
          &sum_rows_meta);
}

namespace ops {

Tensor sum_rows(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("sum_rows");
  const OpScope scope;
  const Tensor sum = scope.keep(op.call(x));
  scope.work(0, bytes_of(x, sum));
  return sum;
}

}  // namespace ops
}  // namespace kuafu
