// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>

#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"
#include "kuafu/tensor/ops/update.h"

namespace kuafu {
namespace {

using kernels::Decay;
using kernels::Momentum;

template <Decay decay>
void adam_cpu(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v, double lr,
              double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
              double grad_factor) {
  const auto steps = static_cast<double>(t);
  const kernels::AdamWFactors factors{
      .beta1 = beta1,
      .beta2 = beta2,
      .epsilon = epsilon,
      .rate = lr / (1 - std::pow(beta1, steps)),
      .spread = 1 / std::sqrt(1 - std::pow(beta2, steps)),
      .grad = grad_factor,
      .coupled = weight_decay,
      .keep = 1 - lr * weight_decay,
  };
  for (const Tensor* x : {&value, &m, &v}) check_dense(*x);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    with_gradients<T>(value, grad, [&]<class Grad>(const Grad* g) {
      kernels::adam(
          decay,
          kernels::AdamWData<T, Grad>{value.mutable_data_ptr<T>(), g, m.mutable_data_ptr<T>(),
                                      v.mutable_data_ptr<T>(), value.numel()},
          factors);
    });
  });
}

template <Decay decay>
void adam_plain(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v,
                double lr, double beta1, double beta2, double epsilon, double weight_decay,
                int64_t t, double grad_factor) {
  const Tensor step = at::full({}, static_cast<double>(t), value.options().dtype(at::kFloat));
  constexpr auto fused = [](const auto&... arguments) {
    if constexpr (decay == Decay::kInGradient) {
      at::_fused_adam_(arguments...);
    } else {
      at::_fused_adamw_(arguments...);
    }
  };
  fused(at::TensorList(value), at::TensorList(scaled(value, grad, grad_factor)), at::TensorList(m),
        at::TensorList(v), at::TensorList(), at::TensorList(step), lr, beta1, beta2, weight_decay,
        epsilon, false, false);
}

void adam_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double, double,
               double, double, int64_t, double) {}

template <Momentum kind>
void sgd_cpu(const Tensor& value, const Tensor& grad, const Tensor& velocity, double lr,
             double momentum, double weight_decay, double grad_factor) {
  for (const Tensor* x : {&value, &velocity}) check_dense(*x);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    with_gradients<T>(value, grad, [&]<class Grad>(const Grad* g) {
      kernels::sgd(kind,
                   kernels::SgdData<T, Grad>{value.mutable_data_ptr<T>(), g,
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

void nesterov_kernel(const Tensor& value, const Tensor& grad, const Tensor& velocity, double lr,
                     double momentum, double weight_decay, double grad_factor) {
  const Tensor g = at::add(scaled(value, grad, grad_factor), value, weight_decay);
  velocity.mul_(momentum).add_(g);
  value.sub_(at::add(g, velocity, momentum), lr);
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

}  // namespace

void add_update_ops(OpLibrary& lib) {
  lib.add(
      "adamw(Tensor(a!) value, Tensor grad, Tensor(b!) m, Tensor(c!) v, float lr, float beta1, "
      "float beta2, float epsilon, float weight_decay, int t, float grad_factor) -> ()",
      "adamw", &adam_cpu<Decay::kOfWeight>, &adam_plain<Decay::kOfWeight>, &adam_meta);
  lib.add(
      "adam(Tensor(a!) value, Tensor grad, Tensor(b!) m, Tensor(c!) v, float lr, float beta1, "
      "float beta2, float epsilon, float weight_decay, int t, float grad_factor) -> ()",
      "adam", &adam_cpu<Decay::kInGradient>, &adam_plain<Decay::kInGradient>, &adam_meta);
  lib.add(
      "sgd(Tensor(a!) value, Tensor grad, Tensor(b!) velocity, float lr, float momentum, "
      "float weight_decay, float grad_factor) -> ()",
      "sgd", &sgd_cpu<Momentum::kPlain>, &sgd_kernel, &sgd_meta);
  lib.add(
      "nesterov(Tensor(a!) value, Tensor grad, Tensor(b!) velocity, float lr, float momentum, "
      "float weight_decay, float grad_factor) -> ()",
      "nesterov", &sgd_cpu<Momentum::kNesterov>, &nesterov_kernel, &sgd_meta);
  lib.add("sum_of_squares(Tensor x) -> Tensor", "sum_of_squares", &sum_of_squares_cpu,
          &sum_of_squares_plain, &sum_of_squares_meta);
}

namespace ops {

namespace {

void update_by(const OwnOp<AdamWOp>& op, Tensor& value, const Tensor& grad, Tensor& m, Tensor& v,
               const AdamWArgs& args) {
  check_update(value, grad, m);
  check_update(value, grad, v);
  KUAFU_CHECK(args.t >= 1, "Adam counts steps from 1, got ", args.t);
  const OpScope scope;
  op.call(value, grad, m, v, args.lr, args.beta1, args.beta2, args.epsilon, args.weight_decay,
          args.t, args.grad_factor);
  scope.work(0, bytes_of(value, value, grad, m, m, v, v));
}

void update_by(const OwnOp<SgdOp>& op, Tensor& value, const Tensor& grad, Tensor& velocity,
               const SgdArgs& args) {
  check_update(value, grad, velocity);
  const OpScope scope;
  op.call(value, grad, velocity, args.lr, args.momentum, args.weight_decay, args.grad_factor);
  scope.work(0, bytes_of(value, value, grad, velocity, velocity));
}

}  // namespace

void adamw(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args) {
  static const auto op = find_op<AdamWOp>("adamw");
  update_by(op, value, grad, m, v, args);
}

void adam(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args) {
  static const auto op = find_op<AdamWOp>("adam");
  update_by(op, value, grad, m, v, args);
}

void sgd(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args) {
  static const auto op = find_op<SgdOp>("sgd");
  update_by(op, value, grad, velocity, args);
}

void nesterov(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args) {
  static const auto op = find_op<SgdOp>("nesterov");
  update_by(op, value, grad, velocity, args);
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
