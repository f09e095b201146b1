// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/meter/flops.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

/// Row- or column-contiguous matrices reach the kernel as they are; others are copied here, as
/// scratch.
Tensor friendly(const Tensor& m) {
  const bool by_rows = m.stride(1) == 1 && m.stride(0) >= m.size(1);
  const bool by_columns = m.stride(0) == 1 && m.stride(1) >= m.size(0);
  return by_rows || by_columns ? m : m.contiguous();
}

Tensor matmul_kernel(const Tensor& a, const Tensor& b) { return at::mm(friendly(a), friendly(b)); }

Tensor matmul_meta(const Tensor& a, const Tensor& b) {
  return at::empty({a.size(0), b.size(1)}, a.options());
}

Tensor matmul_bias_kernel(const Tensor& a, const Tensor& b, const Tensor& bias) {
  return at::addmm(bias, friendly(a), friendly(b));
}

Tensor matmul_bias_meta(const Tensor& a, const Tensor& b, const Tensor&) {
  return matmul_meta(a, b);
}

void matmul_add_kernel(const Tensor& into, const Tensor& a, const Tensor& b) {
  into.addmm_(friendly(a), friendly(b));
}

void matmul_add_meta(const Tensor&, const Tensor&, const Tensor&) {}

int64_t check(const Tensor& a, const Tensor& b) {
  KUAFU_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "matmul of ",
              to_string(shape_of(a)), " and ", to_string(shape_of(b)));
  return flops::matmul(a.size(0), a.size(1), b.size(1));
}

}  // namespace

void add_matmul_ops(OpLibrary& lib) {
  lib.add("matmul(Tensor a, Tensor b) -> Tensor", "matmul", &matmul_kernel, &matmul_kernel,
          &matmul_meta);
  lib.add("matmul_bias(Tensor a, Tensor b, Tensor bias) -> Tensor", "matmul_bias",
          &matmul_bias_kernel, &matmul_bias_kernel, &matmul_bias_meta);
  lib.add("matmul_add(Tensor(a!) into, Tensor a, Tensor b) -> ()", "matmul_add", &matmul_add_kernel,
          &matmul_add_kernel, &matmul_add_meta);
}

namespace ops {

Tensor matmul(const Tensor& a, const Tensor& b) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("matmul");
  const int64_t flops = check(a, b);
  const OpScope scope;
  const Tensor y = scope.keep(op.call(a, b));
  scope.work(flops, bytes_of(a, b, y));
  return y;
}

Tensor matmul_bias(const Tensor& a, const Tensor& b, const Tensor& bias) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, const Tensor&)>("matmul_bias");
  const int64_t flops = check(a, b);
  KUAFU_CHECK(bias.dim() == 1 && bias.size(0) == b.size(1), "bias ", to_string(shape_of(bias)),
              " for ", b.size(1), " columns");
  const OpScope scope;
  const Tensor y = scope.keep(op.call(a, b, bias));
  scope.work(flops, bytes_of(a, b, bias, y));
  return y;
}

void matmul_add(Tensor& into, const Tensor& a, const Tensor& b) {
  static const auto op = find_op<void(const Tensor&, const Tensor&, const Tensor&)>("matmul_add");
  const int64_t flops = check(a, b);
  KUAFU_CHECK(into.dim() == 2 && into.size(0) == a.size(0) && into.size(1) == b.size(1),
              "matmul_add of ", to_string(shape_of(a)), " and ", to_string(shape_of(b)), " into ",
              to_string(shape_of(into)));
  const OpScope scope;
  op.call(into, a, b);
  scope.work(flops, bytes_of(into, into, a, b));
}

}  // namespace ops
}  // namespace kuafu
