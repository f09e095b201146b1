// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <type_traits>

#include "kuafu/tensor/kernels.h"
#include "kuafu/tensor/op_library.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/update_kernels.h"

namespace kuafu {
namespace {

void check_dense(const Tensor& t) {
  KUAFU_CHECK(t.is_contiguous(), "updated in place: strides ", to_string(t.strides().vec()));
}

/// Calls f(gradients) with a pointer to elements that an update of `value` reads: f32 for f32 (bf16
/// and f16 as their bits), f64 for f64.
template <class T, class F>
void with_gradients(const Tensor& value, const Tensor& grad, F f) {
  if constexpr (std::is_same_v<T, float>) {
    if (grad.scalar_type() == at::kBFloat16 || grad.scalar_type() == at::kHalf) {
      const Tensor g = grad.contiguous();
      const void* bits = g.const_data_ptr();
      if (grad.scalar_type() == at::kHalf) return f(static_cast<const kernels::F16*>(bits));
      return f(static_cast<const kernels::BF16*>(bits));
    }
  }
  const Tensor g = grad.to(value.scalar_type()).contiguous();
  f(g.const_data_ptr<T>());
}

void adamw_cpu(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v, double lr,
               double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
               double grad_factor) {
  for (const Tensor* x : {&value, &m, &v}) check_dense(*x);
  const auto steps = static_cast<double>(t);
  const kernels::AdamWFactors factors{
      .beta1 = beta1,
      .beta2 = beta2,
      .epsilon = epsilon,
      .keep = 1 - lr * weight_decay,
      .rate = lr / (1 - std::pow(beta1, steps)),
      .spread = 1 / std::sqrt(1 - std::pow(beta2, steps)),
      .grad = grad_factor,
  };
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    with_gradients<T>(value, grad, [&]<class Grad>(const Grad* g) {
      kernels::adamw(
          kernels::AdamWData<T, Grad>{value.mutable_data_ptr<T>(), g, m.mutable_data_ptr<T>(),
                                      v.mutable_data_ptr<T>(), value.numel()},
          factors);
    });
  });
}

/// grad times a factor in the type of the value.
Tensor scaled(const Tensor& value, const Tensor& grad, double factor) {
  const Tensor g = grad.to(value.scalar_type());
  return factor == 1 ? g : g.mul(factor);
}

void adamw_kernel(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v,
                  double lr, double beta1, double beta2, double epsilon, double weight_decay,
                  int64_t t, double grad_factor) {
  const Tensor step = at::full({}, static_cast<double>(t), value.options().dtype(at::kFloat));
  at::_fused_adamw_(value, scaled(value, grad, grad_factor), m, v, {}, step, lr, beta1, beta2,
                    weight_decay, epsilon, false, false);
}

void adamw_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double, double,
                double, double, int64_t, double) {}

void sgd_cpu(const Tensor& value, const Tensor& grad, const Tensor& velocity, double lr,
             double momentum, double weight_decay, double grad_factor) {
  for (const Tensor* x : {&value, &velocity}) check_dense(*x);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    with_gradients<T>(value, grad, [&]<class Grad>(const Grad* g) {
      kernels::sgd(kernels::SgdData<T, Grad>{value.mutable_data_ptr<T>(), g,
                                             velocity.mutable_data_ptr<T>(), value.numel()},
                   {lr, momentum, weight_decay, grad_factor});
    });
  });
}

void sgd_kernel(const Tensor& value, const Tensor& grad, const Tensor& velocity, double lr,
                double momentum, double weight_decay, double grad_factor) {
  velocity.mul_(momentum).add_(scaled(value, grad, grad_factor));
  if (weight_decay != 0) velocity.add_(value, weight_decay);
  value.sub_(velocity, lr);
}

void sgd_meta(const Tensor&, const Tensor&, const Tensor&, double, double, double, double) {}

Tensor sum_of_squares_cpu(const Tensor& x) {
  const Tensor in = widened(x);
  const double sum = x.scalar_type() == at::kDouble
                         ? kernels::sum_of_squares(in.const_data_ptr<double>(), in.numel())
                         : kernels::sum_of_squares(in.const_data_ptr<float>(), in.numel());
  return at::full({}, sum, x.options().dtype(at::kDouble));
}

Tensor sum_of_squares_plain(const Tensor& x) { return x.to(at::kDouble).square().sum(); }

Tensor sum_of_squares_meta(const Tensor& x) {
  return at::empty({}, x.options().dtype(at::kDouble));
}

using AdamWOp = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double,
                     double, double, double, int64_t, double);
using SgdOp = void(const Tensor&, const Tensor&, const Tensor&, double, double, double, double);

void check(const Tensor& value, const Tensor& grad, const Tensor& state) {
  KUAFU_CHECK(value.sizes() == grad.sizes() && value.sizes() == state.sizes() &&
                  value.scalar_type() == state.scalar_type(),
              "an update of ", to_string(shape_of(value)), " by ", to_string(shape_of(grad)),
              " with state ", to_string(shape_of(state)));
  KUAFU_CHECK(value.scalar_type() == at::kFloat || value.scalar_type() == at::kDouble,
              "values are updated in f32 or f64, got ", value.scalar_type());
}

}  // namespace

void add_update_ops(OpLibrary& lib) {
  lib.add(
      "adamw(Tensor(a!) value, Tensor grad, Tensor(b!) m, Tensor(c!) v, float lr, float beta1, "
      "float beta2, float epsilon, float weight_decay, int t, float grad_factor) -> ()",
      "adamw", &adamw_cpu, &adamw_kernel, &adamw_meta);
  lib.add(
      "sgd(Tensor(a!) value, Tensor grad, Tensor(b!) velocity, float lr, float momentum, "
      "float weight_decay, float grad_factor) -> ()",
      "sgd", &sgd_cpu, &sgd_kernel, &sgd_meta);
  lib.add("sum_of_squares(Tensor x) -> Tensor", "sum_of_squares", &sum_of_squares_cpu,
          &sum_of_squares_plain, &sum_of_squares_meta);
}

namespace ops {

void adamw(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args) {
  static const auto op = find_op<AdamWOp>("adamw");
  check(value, grad, m);
  check(value, grad, v);
  KUAFU_CHECK(args.t >= 1, "AdamW counts steps from 1, got ", args.t);
  const OpScope scope;
  op.call(value, grad, m, v, args.lr, args.beta1, args.beta2, args.epsilon, args.weight_decay,
          args.t, args.grad_factor);
  scope.work(0, bytes_of(value, value, grad, m, m, v, v));
}

void sgd(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args) {
  static const auto op = find_op<SgdOp>("sgd");
  check(value, grad, velocity);
  const OpScope scope;
  op.call(value, grad, velocity, args.lr, args.momentum, args.weight_decay, args.grad_factor);
  scope.work(0, bytes_of(value, value, grad, velocity, velocity));
}

Tensor sum_of_squares(const Tensor& x) {
  static const auto op = find_op<Tensor(const Tensor&)>("sum_of_squares");
  const OpScope scope;
  const Tensor sum = scope.keep(op.call(x));
  scope.work(0, bytes_of(x));
  return sum;
}

}  // namespace ops
}  // namespace kuafu
