// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/kernels/kernels.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

Tensor gelu_kernel(const Tensor& x) { return at::gelu(x, "tanh"); }
Tensor gelu_cpu(const Tensor& x) {
  if (x.scalar_type() != at::kFloat || !x.is_contiguous()) return gelu_kernel(x);
  const Tensor y = at::empty_like(x);
  kernels::gelu(x.const_data_ptr<float>(), y.mutable_data_ptr<float>(), x.numel());
  return y;
}
Tensor gelu_backward_kernel(const Tensor& dy, const Tensor& x) {
  return at::gelu_backward(dy, x, "tanh");
}

Tensor gelu_backward_cpu(const Tensor& dy, const Tensor& x) {
  const bool is_plain = x.scalar_type() == at::kFloat && dy.scalar_type() == at::kFloat &&
                        x.is_contiguous() && dy.is_contiguous();
  if (!is_plain) return gelu_backward_kernel(dy, x);
  const Tensor dx = at::empty_like(x);
  kernels::gelu_backward(dy.const_data_ptr<float>(), x.const_data_ptr<float>(),
                         dx.mutable_data_ptr<float>(), x.numel());
  return dx;
}

Tensor gelu_exact_plain(const Tensor& x) { return at::gelu(x, "none"); }
Tensor gelu_exact_cpu(const Tensor& x) {
  if (x.scalar_type() == at::kDouble) return gelu_exact_plain(x);
  const Tensor in = widened(x), y = at::empty_like(in);
  kernels::gelu_exact(in.const_data_ptr<float>(), y.mutable_data_ptr<float>(), y.numel());
  return y.to(x.scalar_type());
}
Tensor gelu_exact_backward_plain(const Tensor& dy, const Tensor& x) {
  return at::gelu_backward(dy, x, "none");
}
Tensor gelu_exact_backward_cpu(const Tensor& dy, const Tensor& x) {
  if (x.scalar_type() == at::kDouble) return gelu_exact_backward_plain(dy, x);
  const Tensor in = widened(x), g = widened(dy), dx = at::empty_like(in);
  kernels::gelu_exact_backward(g.const_data_ptr<float>(), in.const_data_ptr<float>(),
                               dx.mutable_data_ptr<float>(), dx.numel());
  return dx.to(x.scalar_type());
}

// Bound by memory in ATen's loops too; at::relu has no kernel for meta.
Tensor relu_aten(const Tensor& x) { return at::threshold(x, 0, 0); }
Tensor relu_backward_aten(const Tensor& dy, const Tensor& y) {
  return at::threshold_backward(dy, y, 0);
}

/// Every second column of (..., 2 F), from `first` on: (..., F).
Tensor columns(const Tensor& x, int64_t first) { return x.slice(-1, first, x.size(-1), 2); }

Shape halved(const Tensor& x) {
  Shape shape = shape_of(x);
  shape.back() /= 2;
  return shape;
}

Tensor swiglu_plain(const Tensor& x) {
  const auto type = accumulator(x);
  return at::silu(columns(x, 0).to(type)).mul_(columns(x, 1)).to(x.scalar_type());
}

Tensor swiglu_cpu(const Tensor& x) {
  if (x.scalar_type() == at::kDouble) return swiglu_plain(x);
  const Tensor in = widened(x), y = at::empty(halved(x), in.options());
  kernels::swiglu(in.const_data_ptr<float>(), y.mutable_data_ptr<float>(), y.numel());
  return y.to(x.scalar_type());
}

Tensor swiglu_meta(const Tensor& x) { return at::empty(halved(x), x.options()); }

/// With s = 1 / (1 + e^-g):  d gate = dy up s (1 + g (1 - s)),  d up = dy g s.
Tensor swiglu_backward_plain(const Tensor& dy, const Tensor& x) {
  const Tensor g = widened(columns(x, 0)), s = g.sigmoid(), dy_wide = widened(dy);
  const Tensor dx = at::empty(x.sizes(), x.options());
  columns(dx, 0).copy_((g * (1 - s) + 1).mul_(s).mul_(dy_wide).mul_(columns(x, 1)));
  columns(dx, 1).copy_((dy_wide * g).mul_(s));
  return dx;
}

Tensor swiglu_backward_cpu(const Tensor& dy, const Tensor& x) {
  if (x.scalar_type() == at::kDouble) return swiglu_backward_plain(dy, x);
  const Tensor in = widened(x), g = widened(dy), dx = at::empty(x.sizes(), in.options());
  kernels::swiglu_backward(g.const_data_ptr<float>(), in.const_data_ptr<float>(),
                           dx.mutable_data_ptr<float>(), g.numel());
  return dx.to(x.scalar_type());
}

Tensor swiglu_backward_meta(const Tensor&, const Tensor& x) {
  return at::empty(x.sizes(), x.options());
}

void check_pairs(const Tensor& x) {
  KUAFU_CHECK(x.dim() > 0 && x.size(-1) % 2 == 0, "swiglu of ", to_string(shape_of(x)),
              ": the last dim holds pairs");
}

}  // namespace

void add_activation_ops(OpLibrary& lib) {
  lib.add("gelu(Tensor x) -> Tensor", "gelu", &gelu_cpu, &gelu_kernel, &gelu_kernel);
  lib.add("gelu_backward(Tensor dy, Tensor x) -> Tensor", "gelu_backward", &gelu_backward_cpu,
          &gelu_backward_kernel, &gelu_backward_kernel);
  lib.add("gelu_exact(Tensor x) -> Tensor", "gelu_exact", &gelu_exact_cpu, &gelu_exact_plain,
          &gelu_exact_plain);
  lib.add("gelu_exact_backward(Tensor dy, Tensor x) -> Tensor", "gelu_exact_backward",
          &gelu_exact_backward_cpu, &gelu_exact_backward_plain, &gelu_exact_backward_plain);
  lib.add("relu(Tensor x) -> Tensor", "relu", &relu_aten, &relu_aten, &relu_aten, CpuKernel::kAten);
  lib.add("relu_backward(Tensor dy, Tensor y) -> Tensor", "relu_backward", &relu_backward_aten,
          &relu_backward_aten, &relu_backward_aten, CpuKernel::kAten);
  lib.add("swiglu(Tensor x) -> Tensor", "swiglu", &swiglu_cpu, &swiglu_plain, &swiglu_meta);
  lib.add("swiglu_backward(Tensor dy, Tensor x) -> Tensor", "swiglu_backward", &swiglu_backward_cpu,
          &swiglu_backward_plain, &swiglu_backward_meta);
}

namespace {

using Map = OwnOp<Tensor(const Tensor&)>;
using Slope = OwnOp<Tensor(const Tensor&, const Tensor&)>;

/// Reads each element once and writes each once.
Tensor mapped(const Map& op, const Tensor& x) {
  const OpScope scope;
  const Tensor y = scope.keep(op.call(x));
  scope.work(0, bytes_of(x, y));
  return y;
}

/// `kept`: what the forward kept, its input or its output.
Tensor mapped_back(const Slope& op, const Tensor& dy, const Tensor& kept) {
  const OpScope scope;
  const Tensor dx = scope.keep(op.call(dy, kept));
  scope.work(0, bytes_of(dy, kept, dx));
  return dx;
}

}  // namespace

namespace ops {

Tensor gelu(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("gelu");
  return mapped(op, x);
}

Tensor gelu_backward(const Tensor& dy, const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("gelu_backward");
  return mapped_back(op, dy, x);
}

Tensor gelu_exact(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("gelu_exact");
  return mapped(op, x);
}

Tensor gelu_exact_backward(const Tensor& dy, const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("gelu_exact_backward");
  return mapped_back(op, dy, x);
}

Tensor relu(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("relu");
  return mapped(op, x);
}

Tensor relu_backward(const Tensor& dy, const Tensor& y) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("relu_backward");
  return mapped_back(op, dy, y);
}

Tensor swiglu(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("swiglu");
  check_pairs(x);
  return mapped(op, x);
}

Tensor swiglu_backward(const Tensor& dy, const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&, const Tensor&)>("swiglu_backward");
  check_pairs(x);
  return mapped_back(op, dy, x);
}

}  // namespace ops
}  // namespace kuafu
