// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kuafu/device/device.h"

namespace kuafu::device {

/// The arguments of device::combine.
struct CombineCall {
  DType dtype;
  Combine how;
  const void* const* from;
  void* const* into;
  size_t num_from, num_into;
  int64_t count;
};

/// Starts its kernel on a cudaStream_t; returns a cudaError_t. @pre count is positive
int launch_combine(const CombineCall& call, void* stream);

/// Whether the current device can run it: a cudaError_t.
int load_combine();

}  // namespace kuafu::device
