// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/tensor/tensor.h"

// Norms that hand their input on, for the residual stream around a branch: x + branch(norm(x)).
namespace kuafu {

/// What such a norm gives, both (B, S, H) of the outer stream. The gradients of the two meet in the
/// norm's backward, which reads and writes dx once: dx = norm'(dy) + the gradient of x. A tensor
/// used twice without this has its gradients added by a pass of LibTorch's engine, in place on a
/// CPU but never on meta.
struct Normed {
  Tensor y;  ///< norm(x)
  Tensor x;  ///< the norm's input
};

/// layer_norm() of layers.h, and its input.
Normed layer_norm_with_input(const TensorParallel& tp, const Tensor& x, const Tensor& weight,
                             const Tensor& bias, int64_t hidden, double epsilon);

/// rms_norm() of layers.h, and its input.
Normed rms_norm_with_input(const TensorParallel& tp, const Tensor& x, const Tensor& weight,
                           int64_t hidden, double epsilon);

}  // namespace kuafu
