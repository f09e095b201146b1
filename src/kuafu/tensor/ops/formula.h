// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tensor/ops.h"

// Updates with the formula of their rule, by ATen's calls, which runs in place of an own loop: on a
// GPU, and on a CPU where KUAFU_KERNELS=aten asks for it. Either way they are one op, with one event
// and the same bytes.
namespace kuafu::ops {

using AdamFormula = void (*)(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v,
                             const AdamWArgs& args);
using SgdFormula = void (*)(Tensor& value, const Tensor& grad, Tensor& velocity,
                            const SgdArgs& args);

void adamw(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args,
           AdamFormula formula);
void adam(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args,
          AdamFormula formula);
void sgd(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args,
         SgdFormula formula);
void nesterov(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args,
              SgdFormula formula);

using LambNormsFormula = Tensor (*)(const Tensor& value, const Tensor& grad, Tensor& m, Tensor& v,
                                    const LambArgs& args, const LayerRun& run);
using LambFormula = void (*)(Tensor& value, const Tensor& m, const Tensor& v, const Tensor& rates,
                             const LambArgs& args, const LayerRun& run);
using LayerStepFormula = void (*)(Tensor& value, const Tensor& direction, const Tensor& rates,
                                  const LayerRun& run);
using LarsNormsFormula = Tensor (*)(const Tensor& value, const Tensor& grad, double grad_factor,
                                    const LayerRun& run, double weight_decay);
using LarsFormula = void (*)(Tensor& value, const Tensor& grad, Tensor& velocity,
                             const Tensor& rates, const SgdArgs& args, const LayerRun& run);

/// LAMB's moments of a step in place; sums of squares of the value and of its direction r
/// [You et al., 2020, algorithm 2] by layer, (layers, 2) f64.
Tensor lamb_norms(const Tensor& value, const Tensor& grad, Tensor& m, Tensor& v,
                  const LambArgs& args, const LayerRun& run, LambNormsFormula formula);
/// value -= rates[layer] r; rates (layers) f64.
void lamb(Tensor& value, const Tensor& m, const Tensor& v, const Tensor& rates,
          const LambArgs& args, const LayerRun& run, LambFormula formula);
/// The same of r that was kept.
void layer_step(Tensor& value, const Tensor& direction, const Tensor& rates, const LayerRun& run,
                LayerStepFormula formula);
Tensor lars_norms(const Tensor& value, const Tensor& grad, double grad_factor, const LayerRun& run,
                  double weight_decay, LarsNormsFormula formula);
void lars(Tensor& value, const Tensor& grad, Tensor& velocity, const Tensor& rates,
          const SgdArgs& args, const LayerRun& run, LarsFormula formula);

/// Sums of squares of the elements of a and of b in each layer, (layers, 2) f64.
Tensor squares_by_layer(const Tensor& a, const Tensor& b, const LayerRun& run);
/// Of numbers (layers) that of each element's layer, in the shape and type of the value.
Tensor each_of_layer(const Tensor& numbers, const Tensor& value, const LayerRun& run);

/// A gradient times a factor, in the type of the value.
Tensor scaled(const Tensor& value, const Tensor& grad, double factor);

}  // namespace kuafu::ops
