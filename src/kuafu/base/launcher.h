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

/// The variable that names a file of the launcher: its first byte tells that all ranks listen to
/// signals, its second that a rank has begun, the next two are the number of the signal that the
/// launcher got, which ranks get as SIGUSR2; the fifth is written by each rank that goes to meet the
/// others, so that the file tells when the last of them did; the sixth tells that rank 0 has said how
/// the run ended.
inline constexpr const char* kListeningVariable = "KUAFU_RANKS_LISTEN";

/// The number in the launcher's file; 0 where it has none.
int signal_of_launcher();

/// Writes the second byte where a launcher asks for it. Called on every rank.
void tell_rank_began();

/// Writes the fifth byte where a launcher asks for it. Called on every rank, before MPI begins.
void tell_rank_joins();

/// Writes the first byte where a launcher asks for it. Called on rank 0 once every rank is in main().
void tell_ranks_listen();

/// Writes the sixth byte where a launcher asks for it. Called on rank 0.
void tell_end_is_told();

}  // namespace kuafu
