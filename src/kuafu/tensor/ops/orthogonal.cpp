// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/meter/flops.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/formula.h"
#include "kuafu/tensor/ops/library.h"
#include "kuafu/tensor/ops/update.h"

namespace kuafu {
namespace {

/// Of n matrices at once, (n, R, C).
Tensor iterated(const Tensor& u, at::ArrayRef<double> coefficients, double least_norm) {
  const bool is_tall = u.size(1) > u.size(2);
  const Tensor wide = is_tall ? u.transpose(1, 2) : u;
  Tensor x = wide / (wide.square().sum({1, 2}, true).sqrt() + least_norm);
  for (size_t i = 0; i < coefficients.size(); i += 3) {
    const double a = coefficients[i], b = coefficients[i + 1], c = coefficients[i + 2];
    const Tensor gram = at::bmm(x, x.transpose(1, 2));
    x = at::baddbmm(x, at::baddbmm(gram, gram, gram, b, c), x, a, 1);
  }
  return is_tall ? x.transpose(1, 2) : x;
}

Tensor newton_schulz_kernel(const Tensor& u, at::ArrayRef<double> coefficients, double least_norm,
                            int64_t parts, int64_t width, double scale) {
  const int64_t rows = u.size(0), turns = u.size(1) / (parts * width);
  const Tensor apart = u.reshape({rows, turns, parts, width})
                           .permute({2, 0, 1, 3})
                           .reshape({parts, rows, turns * width});
  return iterated(apart, coefficients, least_norm)
      .reshape({parts, rows, turns, width})
      .permute({1, 2, 0, 3})
      .reshape(u.sizes())
      .contiguous()
      .mul_(scale);
}

Tensor newton_schulz_meta(const Tensor& u, at::ArrayRef<double>, double, int64_t, int64_t, double) {
  return at::empty(u.sizes(), u.options());
}

void momentum_kernel(const Tensor& velocity, const Tensor& grad, double momentum,
                     double grad_factor) {
  velocity.mul_(momentum).add_(ops::scaled(velocity, grad, grad_factor));
}

void momentum_meta(const Tensor&, const Tensor&, double, double) {}

Tensor ahead_kernel(const Tensor& velocity, const Tensor& grad, double momentum,
                    double grad_factor) {
  return at::add(ops::scaled(velocity, grad, grad_factor), velocity, momentum);
}

Tensor ahead_meta(const Tensor& velocity, const Tensor&, double, double) {
  return at::empty_like(velocity);
}

void step_kernel(const Tensor& value, const Tensor& step, double lr, double weight_decay) {
  value.mul_(1 - lr * weight_decay).sub_(step, lr);
}

void step_meta(const Tensor&, const Tensor&, double, double) {}

using NewtonSchulzOp = Tensor(const Tensor&, at::ArrayRef<double>, double, int64_t, int64_t,
                              double);

}  // namespace

void add_orthogonal_ops(OpLibrary& lib) {
  lib.add(
      "newton_schulz(Tensor u, float[] coefficients, float least_norm, int parts, int width, "
      "float scale) -> Tensor",
      "newton_schulz", &newton_schulz_kernel, &newton_schulz_kernel, &newton_schulz_meta);
  lib.add("momentum(Tensor(a!) velocity, Tensor grad, float momentum, float grad_factor) -> ()",
          "momentum", &momentum_kernel, &momentum_kernel, &momentum_meta);
  lib.add(
      "momentum_ahead(Tensor velocity, Tensor grad, float momentum, float grad_factor) -> Tensor",
      "momentum_ahead", &ahead_kernel, &ahead_kernel, &ahead_meta);
  lib.add("decayed_step(Tensor(a!) value, Tensor step, float lr, float weight_decay) -> ()",
          "decayed_step", &step_kernel, &step_kernel, &step_meta);
}

namespace ops {

Tensor newton_schulz(const Tensor& u, const NewtonSchulzArgs& args) {
  static const auto op = find_op<NewtonSchulzOp>("newton_schulz");
  KUAFU_CHECK(u.dim() == 2 && args.parts >= 1, "Newton-Schulz on ", args.parts, " parts of ",
              to_string(shape_of(u)));
  const int64_t rows = u.size(0), columns = u.size(1) / args.parts;
  const int64_t width = args.parts == 1 ? columns : args.width;
  KUAFU_CHECK(width >= 1 && u.size(1) == args.parts * columns && columns % width == 0,
              "Newton-Schulz on ", args.parts, " parts of ", to_string(shape_of(u)),
              " in turns of ", width, " columns");
  KUAFU_CHECK(args.coefficients.size() % 3 == 0, "Newton-Schulz by ", args.coefficients.size(),
              " coefficients, three an iteration");
  const auto iterations = static_cast<int64_t>(args.coefficients.size() / 3);
  const OpScope scope;
  const Tensor x =
      scope.keep(op.call(u, args.coefficients, args.least_norm, args.parts, width, args.scale));
  scope.work(args.parts * flops::newton_schulz(rows, columns, iterations), bytes_of(u, x),
             FlopsOf::kOptimizer);
  return x;
}

void momentum(Tensor& velocity, const Tensor& grad, double momentum, double grad_factor) {
  static const auto op = find_op<void(const Tensor&, const Tensor&, double, double)>("momentum");
  check_update(velocity, grad, velocity);
  const OpScope scope;
  op.call(velocity, grad, momentum, grad_factor);
  scope.work(0, bytes_of(velocity, velocity, grad));
}

Tensor momentum_ahead(const Tensor& velocity, const Tensor& grad, double momentum,
                      double grad_factor) {
  static const auto op =
      find_op<Tensor(const Tensor&, const Tensor&, double, double)>("momentum_ahead");
  check_update(velocity, grad, velocity);
  const OpScope scope;
  const Tensor ahead = scope.keep(op.call(velocity, grad, momentum, grad_factor));
  scope.work(0, bytes_of(velocity, grad, ahead));
  return ahead;
}

void decayed_step(Tensor& value, const Tensor& step, double lr, double weight_decay) {
  static const auto op =
      find_op<void(const Tensor&, const Tensor&, double, double)>("decayed_step");
  check_update(value, step, value);
  const OpScope scope;
  op.call(value, step, lr, weight_decay);
  scope.work(0, bytes_of(value, value, step));
}

}  // namespace ops
}  // namespace kuafu
