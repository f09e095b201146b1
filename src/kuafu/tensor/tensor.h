// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kuafu/base/dtype.h"
#include "kuafu/comm/buffer.h"
#include "kuafu/mesh/layout.h"

namespace kuafu {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// The bytes of a contiguous tensor, not owned. @pre t.is_contiguous()
Buffer view(const Tensor& t);

DType dtype_of(const Tensor& t);
at::ScalarType scalar_type(DType t);
Shape shape_of(const Tensor& t);

/// Runs before the first tensor op of a process: own allocators, own ops with their CPU, CUDA and
/// meta kernels, one intra-op thread in it and in its thread ranks. Idempotent.
void initialise_tensors();

}  // namespace kuafu
