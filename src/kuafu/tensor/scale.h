// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// Multiplies x by a number, in place. ATen wraps the number in a tensor and, on a CPU, converts it
/// to x's type in another; these few bytes are booked as scratch, since a meta device has only one
/// of them: otherwise a simulated peak may be 4 bytes low.
void scale(const Tensor& x, double factor);

}  // namespace kuafu
