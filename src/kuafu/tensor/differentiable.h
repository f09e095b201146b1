// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// What a differentiable call keeps for its backward: `saved` (through autograd, version-checked).
struct ForwardResult {
  Tensors outputs;
  Tensors saved;
};
using Forward = std::function<ForwardResult(const Tensors& inputs)>;
/// (saved, one gradient per output; undefined where none arrived) -> one gradient per input
/// (undefined where it has none). needs[i] tells whether input i wants one.
using Backward = std::function<Tensors(const Tensors& saved, const Tensors& grads,
                                       const std::vector<bool>& needs)>;

/// outputs = forward(inputs), differentiated by `backward`. Both run without recording. This is the
/// only place that knows LibTorch's autograd nodes. Without grad mode, or where no input requires a
/// gradient, only forward runs and nothing is saved.
Tensors differentiable(const Tensors& inputs, const Forward& forward, Backward backward);

/// x for each of `uses` users; backward adds their gradients, first user first, in the first one's
/// memory where nobody else holds it. A tensor used twice without this has its gradients added by
/// LibTorch's engine, in place on a CPU but never on meta: then the two worlds' peaks differ.
Tensors fan_out(const Tensor& x, int64_t uses);

}  // namespace kuafu
