// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/worlds.h"

namespace kuafu {

void run_on_mpi(const std::function<void(Communicator& world)>&, MpiCollectives,
                const ExitCodeOf&) {
  throw Unavailable(
      "this kuafu was built without MPI; install MPI (Debian: libopenmpi-dev), configure and build "
      "again, or choose --world threads");
}

}  // namespace kuafu
