// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "kuafu/comm/communicator.h"

namespace kuafu {

struct NcclOptions {
  /// Longest time that one operation is under way before the run fails.
  std::chrono::milliseconds timeout{300'000};
};

/// What run_on_nccl does on each rank once its ranks can talk on the host. `host` carries what NCCL
/// has no way for: calls on host memory, and how messages find each other.
/// @pre collective over `host`, which outlives it; no two ranks share a thread
void run_on_nccl_over(Communicator& host, const std::function<void(Communicator& world)>& body,
                      const NcclOptions& options = {});

}  // namespace kuafu
