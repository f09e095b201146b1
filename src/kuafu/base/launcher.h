// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace kuafu {

/// The place of this process among those that an MPI launcher started.
struct LaunchedRank {
  int64_t rank = 0;
  int64_t ranks = 1;
};

/// Read from the variables of Open MPI's mpirun and of PMI and PMIx starters (srun --mpi, Hydra);
/// none where no launcher started this process.
std::optional<LaunchedRank> launched_rank();

/// For an error that all launched ranks find alike, before any of them communicates: returns at
/// once on rank 0, whose exit makes the launcher end the others, and elsewhere only where that has
/// not happened within 4 s.
void let_rank_0_report();

}  // namespace kuafu
