// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>

#include "kuafu/base/kernel_choice.h"
#include "kuafu/tensor/ops/card.h"
#include "kuafu/tensor/ops/formula.h"
#include "kuafu/tensor/ops/library.h"
#include "kuafu/tensor/ops/update.h"

namespace kuafu {
namespace {

using kernels::Decay;
using kernels::Momentum;

kernels::AdamWFactors adam_factors(double lr, double beta1, double beta2, double epsilon,
                                   double weight_decay, int64_t t, double grad_factor) {
  const auto steps = static_cast<double>(t);
  return {
      .beta1 = beta1,
      .beta2 = beta2,
      .epsilon = epsilon,
      .rate = lr / (1 - std::pow(beta1, steps)),
      .spread = 1 / std::sqrt(1 - std::pow(beta2, steps)),
      .grad = grad_factor,
      .coupled = weight_decay,
      .keep = 1 - lr * weight_decay,
  };
}

template <Decay decay>
void adam_cuda(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v, double lr,
               double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
               double grad_factor) {
  for (const Tensor* x : {&value, &m, &v}) check_dense(*x);
  const Tensor g = grad_for_card(value, grad);
  check_started(
      kernels::card::adam(decay,
                          {kind_of(value), kind_of(g), value.mutable_data_ptr(), g.const_data_ptr(),
                           m.mutable_data_ptr(), v.mutable_data_ptr(), value.numel()},
                          adam_factors(lr, beta1, beta2, epsilon, weight_decay, t, grad_factor),
                          card_stream_of(value)),
      "an update");
}

template <Momentum how>
void sgd_cuda(const Tensor& value, const Tensor& grad, const Tensor& velocity, double lr,
              double momentum, double weight_decay, double grad_factor) {
  for (const Tensor* x : {&value, &velocity}) check_dense(*x);
  const Tensor g = grad_for_card(value, grad);
  check_started(
      kernels::card::sgd(how,
                         {kind_of(value), kind_of(g), value.mutable_data_ptr(), g.const_data_ptr(),
                          velocity.mutable_data_ptr(), value.numel()},
                         {lr, momentum, weight_decay, grad_factor}, card_stream_of(value)),
      "an update");
}

template <Decay decay>
void adam_cpu(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v, double lr,
              double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
              double grad_factor) {
  const kernels::AdamWFactors factors =
      adam_factors(lr, beta1, beta2, epsilon, weight_decay, t, grad_factor);
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

void sgd_meta(const Tensor&, const Tensor&, const Tensor&, double, double, double, double) {}

Tensor sum_of_squares_cpu(const Tensor& x) {
  const Tensor in = widened(x);
  const double sum = x.scalar_type() == at::kDouble
                         ? kernels::sum_of_squares(in.const_data_ptr<double>(), in.numel())
                         : kernels::sum_of_squares(in.const_data_ptr<float>(), in.numel());
  return at::full({}, sum, x.options().dtype(at::kDouble));
}

Tensor sum_of_squares_cuda(const Tensor& x) {
  if (!has_card_kernel(x)) return x.to(at::kDouble).square().sum();
  const Tensor in = x.contiguous();
  const Tensor partial = at::empty({kernels::card::kPartials}, x.options().dtype(at::kDouble));
  const Tensor sum = at::empty({}, partial.options());
  check_started(kernels::card::sum_of_squares(kind_of(in), in.const_data_ptr(), in.numel(),
                                              partial.mutable_data_ptr<double>(),
                                              sum.mutable_data_ptr<double>(), card_stream_of(in)),
                "a sum of squares");
  return sum;
}

Tensor sum_of_squares_meta(const Tensor& x) {
  return at::empty({}, x.options().dtype(at::kDouble));
}

using AdamWOp = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double,
                     double, double, double, int64_t, double);
using SgdOp = void(const Tensor&, const Tensor&, const Tensor&, double, double, double, double);

}  // namespace

bool has_loop(const Tensor& value) {
  static const bool is_own = kernel_choice() == KernelChoice::kOwn;
  return value.is_meta() || (value.is_cpu() && is_own) || has_card_kernel(value);
}

void add_update_ops(OpLibrary& lib) {
  add_rule(
      lib,
      "adamw(Tensor(a!) value, Tensor grad, Tensor(b!) m, Tensor(c!) v, float lr, float beta1, "
      "float beta2, float epsilon, float weight_decay, int t, float grad_factor) -> ()",
      "adamw", &adam_cpu<Decay::kOfWeight>, &adam_cuda<Decay::kOfWeight>, &adam_meta);
  add_rule(lib,
           "adam(Tensor(a!) value, Tensor grad, Tensor(b!) m, Tensor(c!) v, float lr, float beta1, "
           "float beta2, float epsilon, float weight_decay, int t, float grad_factor) -> ()",
           "adam", &adam_cpu<Decay::kInGradient>, &adam_cuda<Decay::kInGradient>, &adam_meta);
  add_rule(lib,
           "sgd(Tensor(a!) value, Tensor grad, Tensor(b!) velocity, float lr, float momentum, "
           "float weight_decay, float grad_factor) -> ()",
           "sgd", &sgd_cpu<Momentum::kPlain>, &sgd_cuda<Momentum::kPlain>, &sgd_meta);
  add_rule(lib,
           "nesterov(Tensor(a!) value, Tensor grad, Tensor(b!) velocity, float lr, float momentum, "
           "float weight_decay, float grad_factor) -> ()",
           "nesterov", &sgd_cpu<Momentum::kNesterov>, &sgd_cuda<Momentum::kNesterov>, &sgd_meta);
  lib.add("sum_of_squares(Tensor x) -> Tensor", "sum_of_squares", &sum_of_squares_cpu,
          &sum_of_squares_cuda, &sum_of_squares_meta);
}

namespace ops {

namespace {

void update_by(const UpdateOp<AdamWOp>& op, Tensor& value, const Tensor& grad, Tensor& m, Tensor& v,
               const AdamWArgs& args, AdamFormula formula) {
  check_update(value, grad, m);
  check_update(value, grad, v);
  KUAFU_CHECK(args.t >= 1, "Adam counts steps from 1, got ", args.t);
  const OpScope scope;
  if (formula == nullptr || has_loop(value)) {
    op.loop().call(value, grad, m, v, args.lr, args.beta1, args.beta2, args.epsilon,
                   args.weight_decay, args.t, args.grad_factor);
  } else {
    op.by_formula([&] { formula(value, grad, m, v, args); }, value, grad, m, v);
  }
  scope.work(0, bytes_of(value, value, grad, m, m, v, v));
}

void update_by(const UpdateOp<SgdOp>& op, Tensor& value, const Tensor& grad, Tensor& velocity,
               const SgdArgs& args, SgdFormula formula) {
  check_update(value, grad, velocity);
  const OpScope scope;
  if (formula == nullptr || has_loop(value)) {
    op.loop().call(value, grad, velocity, args.lr, args.momentum, args.weight_decay,
                   args.grad_factor);
  } else {
    op.by_formula([&] { formula(value, grad, velocity, args); }, value, grad, velocity);
  }
  scope.work(0, bytes_of(value, value, grad, velocity, velocity));
}

}  // namespace

void adamw(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args,
           AdamFormula formula) {
  static const UpdateOp<AdamWOp> op("adamw");
  update_by(op, value, grad, m, v, args, formula);
}

void adam(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args,
          AdamFormula formula) {
  static const UpdateOp<AdamWOp> op("adam");
  update_by(op, value, grad, m, v, args, formula);
}

void sgd(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args,
         SgdFormula formula) {
  static const UpdateOp<SgdOp> op("sgd");
  update_by(op, value, grad, velocity, args, formula);
}

void nesterov(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args,
              SgdFormula formula) {
  static const UpdateOp<SgdOp> op("nesterov");
  update_by(op, value, grad, velocity, args, formula);
}

void adamw(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args) {
  adamw(value, grad, m, v, args, nullptr);
}

void adam(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args) {
  adam(value, grad, m, v, args, nullptr);
}

void sgd(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args) {
  sgd(value, grad, velocity, args, nullptr);
}

void nesterov(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args) {
  nesterov(value, grad, velocity, args, nullptr);
}

Tensor scaled(const Tensor& value, const Tensor& grad, double factor) {
  const Tensor g = grad.to(value.scalar_type());
  return factor == 1 ? g : g.mul(factor);
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
