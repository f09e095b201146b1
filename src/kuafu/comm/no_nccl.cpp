// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/worlds.h"

namespace kuafu {

void run_on_nccl(const std::function<void(Communicator& world)>&) {
  throw Unavailable(
      "this kuafu was built without NCCL; where a CUDA toolkit with NCCL is present, configure and "
      "build again, or choose --world threads or mpi");
}

}  // namespace kuafu
