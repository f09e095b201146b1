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

/// A gradient times a factor, in the type of the value.
Tensor scaled(const Tensor& value, const Tensor& grad, double factor);

}  // namespace kuafu::ops
