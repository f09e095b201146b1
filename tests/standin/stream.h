// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "tests/standin/machine.h"

/// What a cudaStream_t points to.
struct CUstream_st {
  std::shared_ptr<kuafu::standin::Queue> queue;
};

namespace kuafu::standin {

/// The queue of a stream; null names the device's own.
inline std::shared_ptr<Queue> queue_of(CUstream_st* stream) {
  return stream == nullptr ? Machine::instance().null_queue() : stream->queue;
}

}  // namespace kuafu::standin
