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

/// What ranks of this process compute on where a call names no other device; the CPU at first.
at::Device compute_device();

/// Makes that `device`, the CPU or CUDA. The first rank of a process loads the kernels, so that a
/// process may fork before it has ranks; it throws Unavailable where there is no card. Each thread
/// that is a rank gets a stream of its own on its card, and runs its backward itself: LibTorch would
/// have all ranks of a card share one thread, where they would wait for each other for ever.
void compute_on(at::DeviceType device);

}  // namespace kuafu
