// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdlib>

#include "kuafu/comm/worlds.h"

namespace kuafu {

bool is_under_mpi_launcher() {
  // Open MPI's mpirun; PMIx and PMI-1/2 starters: srun --mpi, Hydra.
  constexpr std::array names = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
  for (const char* name : names) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

}  // namespace kuafu
