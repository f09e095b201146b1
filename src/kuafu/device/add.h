// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/base/dtype.h"

namespace kuafu::device {

/// Starts the kernel behind device::add on a cudaStream_t; returns a cudaError_t.
/// @pre dtype is f64, f32, bf16 or f16; count is positive.
int launch_add(DType dtype, void* into, const void* from, int64_t count, void* stream);

}  // namespace kuafu::device
