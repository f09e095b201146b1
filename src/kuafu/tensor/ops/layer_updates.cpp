// SPDX-License-Identifier: Apache-2.0
//
// Updates by the norms of layers: LARS and LAMB, each in two ops with a sum over ranks between.

#include <ATen/ATen.h>

#include <array>
#include <cmath>

#include "kuafu/kernels/layer_updates.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/card.h"
#include "kuafu/tensor/ops/formula.h"
#include "kuafu/tensor/ops/library.h"
#include "kuafu/tensor/ops/update.h"

namespace kuafu {
namespace {

/// {first, columns, stacked, parts, width, column} of an ops::LayerRun.
kernels::LayerRun run_of(at::IntArrayRef run, int64_t count) {
  return {count, run[0], run[1], run[2], run[3], run[4], run[5]};
}

kernels::LambFactors lamb_factors(double beta1, double beta2, double epsilon, double weight_decay,
                                  int64_t t, double grad_factor) {
  const auto steps = static_cast<double>(t);
  return {.beta1 = beta1,
          .beta2 = beta2,
          .epsilon = epsilon,
          .decay = weight_decay,
          .rate = t == 0 ? 1 : 1 / (1 - std::pow(beta1, steps)),
          .spread = t == 0 ? 1 : 1 / std::sqrt(1 - std::pow(beta2, steps)),
          .grad = grad_factor};
}

Tensor new_sums(const Tensor& value, int64_t layers) {
  return at::zeros({layers, 2}, value.options().dtype(at::kDouble));
}

Tensor lamb_norms_cpu(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v,
                      double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
                      double grad_factor, at::IntArrayRef run, int64_t layers,
                      bool keeps_direction) {
  for (const Tensor* x : {&value, &m, &v}) check_dense(*x);
  const Tensor sums = new_sums(value, layers);
  const auto factors = lamb_factors(beta1, beta2, epsilon, weight_decay, t, grad_factor);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    with_gradients<T>(value, grad, [&]<class Grad>(const Grad* g) {
      const kernels::AdamWData<T, Grad> data{value.mutable_data_ptr<T>(), g,
                                             m.mutable_data_ptr<T>(), v.mutable_data_ptr<T>(),
                                             value.numel()};
      T* const kept = keeps_direction ? grad.mutable_data_ptr<T>() : nullptr;
      kernels::lamb_norms(run_of(run, data.count), data, factors, sums.mutable_data_ptr<double>(),
                          kept);
    });
  });
  return sums;
}

kernels::card::AdamCall adam_call(const Tensor& value, const Tensor& grad, const Tensor& m,
                                  const Tensor& v) {
  for (const Tensor* x : {&value, &m, &v}) check_dense(*x);
  return {kind_of(value),        kind_of(grad),        value.mutable_data_ptr(),
          grad.const_data_ptr(), m.mutable_data_ptr(), v.mutable_data_ptr(),
          value.numel()};
}

/// Room for the sums of blocks.
Tensor new_partial(const Tensor& value) {
  return at::empty({2 * kernels::card::kMostLayers * kernels::card::kPartials},
                   value.options().dtype(at::kDouble));
}

Tensor lamb_norms_cuda(const Tensor& value, const Tensor& grad, const Tensor& m, const Tensor& v,
                       double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
                       double grad_factor, at::IntArrayRef run, int64_t layers, bool) {
  if (value.numel() == 0) return new_sums(value, layers);
  const Tensor g = grad_for_card(value, grad), partial = new_partial(value);
  const Tensor sums = at::empty({layers, 2}, partial.options());
  check_started(
      kernels::card::lamb_norms(run_of(run, value.numel()), layers, adam_call(value, g, m, v),
                                lamb_factors(beta1, beta2, epsilon, weight_decay, t, grad_factor),
                                partial.mutable_data_ptr<double>(), sums.mutable_data_ptr<double>(),
                                card_stream_of(value)),
      "norms of layers");
  return sums;
}

Tensor lamb_norms_meta(const Tensor& value, const Tensor&, const Tensor&, const Tensor&, double,
                       double, double, double, int64_t, double, at::IntArrayRef, int64_t layers,
                       bool) {
  return at::empty({layers, 2}, value.options().dtype(at::kDouble));
}

void layer_step_cpu(const Tensor& value, const Tensor& direction, const Tensor& rates,
                    at::IntArrayRef run) {
  for (const Tensor* x : {&value, &direction, &rates}) check_dense(*x);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    kernels::layer_step(run_of(run, value.numel()), value.mutable_data_ptr<T>(),
                        direction.const_data_ptr<T>(), rates.const_data_ptr<double>());
  });
}

void layer_step_meta(const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef) {}

void lamb_cpu(const Tensor& value, const Tensor& m, const Tensor& v, const Tensor& rates,
              double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
              at::IntArrayRef run) {
  for (const Tensor* x : {&value, &m, &v, &rates}) check_dense(*x);
  const auto factors = lamb_factors(beta1, beta2, epsilon, weight_decay, t, 1);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    const kernels::AdamWData<T, T> data{value.mutable_data_ptr<T>(), nullptr,
                                        m.mutable_data_ptr<T>(), v.mutable_data_ptr<T>(),
                                        value.numel()};
    kernels::lamb(run_of(run, data.count), data, factors, rates.const_data_ptr<double>());
  });
}

void lamb_cuda(const Tensor& value, const Tensor& m, const Tensor& v, const Tensor& rates,
               double beta1, double beta2, double epsilon, double weight_decay, int64_t t,
               at::IntArrayRef run) {
  if (value.numel() == 0) return;
  const auto factors = lamb_factors(beta1, beta2, epsilon, weight_decay, t, 1);
  const Tensor each = rates.contiguous();
  check_started(kernels::card::lamb(run_of(run, value.numel()), adam_call(value, value, m, v),
                                    factors, each.const_data_ptr<double>(), card_stream_of(value)),
                "an update");
}

void lamb_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double, double,
               double, int64_t, at::IntArrayRef) {}

Tensor lars_norms_cpu(const Tensor& value, const Tensor& grad, double grad_factor,
                      double weight_decay, at::IntArrayRef run, int64_t layers) {
  check_dense(value);
  const Tensor sums = new_sums(value, layers);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    with_gradients<T>(value, grad, [&]<class Grad>(const Grad* g) {
      const kernels::SgdData<T, Grad> data{value.mutable_data_ptr<T>(), g, nullptr, value.numel()};
      kernels::lars_norms(run_of(run, data.count), data, {1, 0, weight_decay, grad_factor},
                          sums.mutable_data_ptr<double>());
    });
  });
  return sums;
}

Tensor lars_norms_cuda(const Tensor& value, const Tensor& grad, double grad_factor,
                       double weight_decay, at::IntArrayRef run, int64_t layers) {
  if (value.numel() == 0) return new_sums(value, layers);
  check_dense(value);
  const Tensor g = grad_for_card(value, grad), partial = new_partial(value);
  const Tensor sums = at::empty({layers, 2}, partial.options());
  check_started(kernels::card::lars_norms(run_of(run, value.numel()), layers,
                                          {kind_of(value), kind_of(g), value.mutable_data_ptr(),
                                           g.const_data_ptr(), nullptr, value.numel()},
                                          {1, 0, weight_decay, grad_factor},
                                          partial.mutable_data_ptr<double>(),
                                          sums.mutable_data_ptr<double>(), card_stream_of(value)),
                "norms of layers");
  return sums;
}

Tensor lars_norms_meta(const Tensor& value, const Tensor&, double, double, at::IntArrayRef,
                       int64_t layers) {
  return at::empty({layers, 2}, value.options().dtype(at::kDouble));
}

kernels::SgdFactors lars_factors(const Tensor& rates, double momentum, double weight_decay,
                                 double grad_factor, double lr, double clip_elements) {
  kernels::SgdFactors factors{lr, momentum, weight_decay, grad_factor};
  if (clip_elements > 0) factors.most = clip_elements;
  factors.rates_of_layer = static_cast<int>(rates.dim());
  return factors;
}

void lars_cpu(const Tensor& value, const Tensor& grad, const Tensor& velocity, const Tensor& rates,
              double momentum, double weight_decay, double grad_factor, double lr,
              double clip_elements, at::IntArrayRef run) {
  const kernels::SgdFactors factors =
      lars_factors(rates, momentum, weight_decay, grad_factor, lr, clip_elements);
  for (const Tensor* x : {&value, &velocity, &rates}) check_dense(*x);
  by_type(value, [&](auto zero) {
    using T = decltype(zero);
    with_gradients<T>(value, grad, [&]<class Grad>(const Grad* g) {
      const kernels::SgdData<T, Grad> data{value.mutable_data_ptr<T>(), g,
                                           velocity.mutable_data_ptr<T>(), value.numel()};
      kernels::lars(run_of(run, data.count), data, factors, rates.const_data_ptr<double>());
    });
  });
}

void lars_cuda(const Tensor& value, const Tensor& grad, const Tensor& velocity, const Tensor& rates,
               double momentum, double weight_decay, double grad_factor, double lr,
               double clip_elements, at::IntArrayRef run) {
  if (value.numel() == 0) return;
  for (const Tensor* x : {&value, &velocity}) check_dense(*x);
  const Tensor g = grad_for_card(value, grad), each = rates.contiguous();
  const kernels::SgdFactors factors =
      lars_factors(rates, momentum, weight_decay, grad_factor, lr, clip_elements);
  check_started(
      kernels::card::lars(run_of(run, value.numel()),
                          {kind_of(value), kind_of(g), value.mutable_data_ptr(), g.const_data_ptr(),
                           velocity.mutable_data_ptr(), value.numel()},
                          factors, each.const_data_ptr<double>(), card_stream_of(value)),
      "an update");
}

void lars_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double, double,
               double, double, at::IntArrayRef) {}

using LambNormsOp = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                           double, double, double, int64_t, double, at::IntArrayRef, int64_t, bool);
using LayerStepOp = void(const Tensor&, const Tensor&, const Tensor&, at::IntArrayRef);
using LambOp = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double,
                    double, double, int64_t, at::IntArrayRef);
using LarsNormsOp = Tensor(const Tensor&, const Tensor&, double, double, at::IntArrayRef, int64_t);
using LarsOp = void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, double,
                    double, double, double, at::IntArrayRef);

std::array<int64_t, 6> ints_of(const ops::LayerRun& run) {
  return {run.first, run.columns, run.stacked, run.parts, run.width, run.column};
}

/// `most`: rates that a layer may have.
void check_run(const Tensor& value, const ops::LayerRun& run, const Tensor& rates = {},
               int64_t most = 1) {
  const auto are_rates = [&] {
    if (rates.scalar_type() != at::kDouble || rates.size(0) != run.layers) return false;
    return rates.dim() == 1 || (rates.dim() == 2 && rates.size(1) == 2 && most == 2);
  };
  KUAFU_CHECK(run.layers >= 1 && run.columns >= 1 && run.parts >= 1 && run.width >= 1 &&
                  (!rates.defined() || are_rates()),
              "an update of ", to_string(shape_of(value)), " in ", run.layers, " layers");
}

/// Whether a loop, or a kernel of a card, makes an update of these layers; else its formula does.
bool is_by_loop(const Tensor& value, const ops::LayerRun& run, bool has_formula) {
  if (!value.is_cuda()) return !has_formula || has_loop(value);
  const bool fits = has_loop(value) && run.layers <= kernels::card::kMostLayers;
  KUAFU_REQUIRE(fits || has_formula, "an update of ", run.layers,
                " layers on a card: its kernel takes at most ", kernels::card::kMostLayers,
                "; give the op the formula of the rule");
  return fits;
}

/// The layer of each element, (count) i64.
Tensor layers_of(const Tensor& value, const ops::LayerRun& run) {
  const Tensor at =
      at::arange(run.first, run.first + value.numel(), value.options().dtype(at::kLong));
  Tensor layer = at::zeros_like(at);
  if (run.stacked > 0) layer = at.floor_divide(run.stacked) * run.parts;
  if (run.parts == 1) return layer;
  const Tensor column = at.remainder(run.columns) + run.column;
  return layer + column.floor_divide(run.width).remainder(run.parts);
}

}  // namespace

void add_layer_ops(OpLibrary& lib) {
  add_rule(lib,
           "lamb_norms(Tensor value, Tensor(c!) grad, Tensor(a!) m, Tensor(b!) v, float beta1, "
           "float beta2, float epsilon, float weight_decay, int t, float grad_factor, int[] run, "
           "int layers, bool keeps_direction) -> Tensor",
           "lamb_norms", &lamb_norms_cpu, &lamb_norms_cuda, &lamb_norms_meta);
  lib.schemas.def("layer_step(Tensor(a!) value, Tensor direction, Tensor rates, int[] run) -> ()");
  lib.cpu.impl("layer_step", &layer_step_cpu);
  lib.meta.impl("layer_step", &layer_step_meta);
  add_rule(lib,
           "lamb(Tensor(a!) value, Tensor m, Tensor v, Tensor rates, float beta1, float beta2, "
           "float epsilon, float weight_decay, int t, int[] run) -> ()",
           "lamb", &lamb_cpu, &lamb_cuda, &lamb_meta);
  add_rule(lib,
           "lars_norms(Tensor value, Tensor grad, float grad_factor, float weight_decay, "
           "int[] run, int layers) -> Tensor",
           "lars_norms", &lars_norms_cpu, &lars_norms_cuda, &lars_norms_meta);
  add_rule(lib,
           "lars(Tensor(a!) value, Tensor grad, Tensor(b!) velocity, Tensor rates, float momentum, "
           "float weight_decay, float grad_factor, float lr, float clip_elements, int[] run) -> ()",
           "lars", &lars_cpu, &lars_cuda, &lars_meta);
}

namespace ops {

Tensor lamb_norms(const Tensor& value, const Tensor& grad, Tensor& m, Tensor& v,
                  const LambArgs& args, const LayerRun& run, LambNormsFormula formula) {
  static const UpdateOp<LambNormsOp> op("lamb_norms");
  check_update(value, grad, m);
  check_update(value, grad, v);
  if (args.keeps_direction) {
    check_update(value, m, grad);
    check_dense(grad);
  }
  check_run(value, run);
  const OpScope scope;
  Tensor sums;
  // The kernel of a card keeps no direction.
  const bool can_keep = !args.keeps_direction || !value.is_cuda();
  if (can_keep && is_by_loop(value, run, formula != nullptr)) {
    sums =
        op.loop().call(value, grad, m, v, args.beta1, args.beta2, args.epsilon, args.weight_decay,
                       args.t, args.grad_factor, ints_of(run), run.layers, args.keeps_direction);
  } else {
    sums = op.by_formula([&] { return formula(value, grad, m, v, args, run); }, value, grad, m, v);
  }
  const int64_t kept = args.keeps_direction ? bytes_of(grad) : 0;
  scope.work(0, bytes_of(value, grad, m, m, v, v) + kept);
  return scope.keep(sums);
}

void layer_step(Tensor& value, const Tensor& direction, const Tensor& rates, const LayerRun& run,
                LayerStepFormula formula) {
  static const UpdateOp<LayerStepOp> op("layer_step");
  check_update(value, direction, direction);
  check_run(value, run, rates);
  const OpScope scope;
  if (!value.is_cuda() && has_loop(value)) {
    op.loop().call(value, direction, rates, ints_of(run));
  } else {
    op.by_formula([&] { formula(value, direction, rates, run); }, value, direction, rates);
  }
  scope.work(0, bytes_of(value, value, direction));
}

void lamb(Tensor& value, const Tensor& m, const Tensor& v, const Tensor& rates,
          const LambArgs& args, const LayerRun& run, LambFormula formula) {
  static const UpdateOp<LambOp> op("lamb");
  check_update(value, m, v);
  check_run(value, run, rates);
  const OpScope scope;
  if (is_by_loop(value, run, formula != nullptr)) {
    op.loop().call(value, m, v, rates, args.beta1, args.beta2, args.epsilon, args.weight_decay,
                   args.t, ints_of(run));
  } else {
    op.by_formula([&] { formula(value, m, v, rates, args, run); }, value, m, v, rates);
  }
  scope.work(0, bytes_of(value, value, m, v));
}

Tensor lars_norms(const Tensor& value, const Tensor& grad, double grad_factor, const LayerRun& run,
                  double weight_decay, LarsNormsFormula formula) {
  static const UpdateOp<LarsNormsOp> op("lars_norms");
  check_update(value, grad, value);
  check_run(value, run);
  const OpScope scope;
  Tensor sums;
  if (is_by_loop(value, run, formula != nullptr)) {
    sums = op.loop().call(value, grad, grad_factor, weight_decay, ints_of(run), run.layers);
  } else {
    sums = op.by_formula([&] { return formula(value, grad, grad_factor, run, weight_decay); },
                         value, grad);
  }
  scope.work(0, bytes_of(value, grad));
  return scope.keep(sums);
}

void lars(Tensor& value, const Tensor& grad, Tensor& velocity, const Tensor& rates,
          const SgdArgs& args, const LayerRun& run, LarsFormula formula) {
  static const UpdateOp<LarsOp> op("lars");
  check_update(value, grad, velocity);
  check_run(value, run, rates, 2);
  const OpScope scope;
  if (is_by_loop(value, run, formula != nullptr)) {
    op.loop().call(value, grad, velocity, rates, args.momentum, args.weight_decay, args.grad_factor,
                   args.lr, args.clip_elements, ints_of(run));
  } else {
    op.by_formula([&] { formula(value, grad, velocity, rates, args, run); }, value, grad, velocity,
                  rates);
  }
  scope.work(0, bytes_of(value, value, grad, velocity, velocity));
}

Tensor lars_norms(const Tensor& value, const Tensor& grad, double grad_factor, const LayerRun& run,
                  double weight_decay) {
  return lars_norms(value, grad, grad_factor, run, weight_decay, nullptr);
}

void lars(Tensor& value, const Tensor& grad, Tensor& velocity, const Tensor& rates,
          const SgdArgs& args, const LayerRun& run) {
  lars(value, grad, velocity, rates, args, run, nullptr);
}

Tensor squares_by_layer(const Tensor& a, const Tensor& b, const LayerRun& run) {
  const Tensor both = at::stack({a.flatten(), b.flatten()}, 1).to(at::kDouble).square();
  if (run.layers == 1) return both.sum(0, true);
  if (a.is_cuda()) {  // index_add_ has no order there, and replicas must agree to the bit
    const Tensor of = layers_of(a, run);
    Tensors sums;
    for (int64_t i = 0; i < run.layers; ++i) sums.push_back((both * of.eq(i).unsqueeze(1)).sum(0));
    return at::stack(sums);
  }
  return new_sums(a, run.layers).index_add_(0, layers_of(a, run), both);
}

Tensor each_of_layer(const Tensor& numbers, const Tensor& value, const LayerRun& run) {
  const Tensor each = numbers.index_select(0, layers_of(value, run));
  return each.view(value.sizes()).to(value.scalar_type());
}

}  // namespace ops
}  // namespace kuafu
