// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "kuafu/comm/communicator.h"

namespace kuafu {

/// One rank that talks to nobody.
std::unique_ptr<Communicator> make_self();

struct ThreadsOptions {
  /// Longest wait inside one operation before the table of who waits where is thrown.
  std::chrono::milliseconds timeout{300'000};
};

/// What every rank of threads and of NCCL does first, on its own thread; nothing by default. For
/// settings of a library that each thread has for itself. Set before ranks start.
void set_start_of_ranks(void (*start)());
void start_rank();  ///< does it

/// Runs `body` on `ranks` threads of this process, each with its own world communicator, and joins
/// them. The first exception ends every rank's waits and is rethrown with its type kept and its
/// rank named. A rank that returns early, skips or swaps a collective is found at once.
void run_on_threads(int ranks, const std::function<void(Communicator& world)>& body,
                    const ThreadsOptions& options = {});

/// Which collectives MPI ranks use: Kuafu's own over send and receive, or the library's.
enum class MpiCollectives : uint8_t { kOwn, kNative };

/// True where the process was started by an MPI launcher (mpirun, srun with PMI).
bool is_under_mpi_launcher();

/// Initialises MPI, runs `body` with the world communicator and finalises. An exception is printed
/// with its rank and ends all ranks (MPI_Abort) with its exit code, 1 where there is no `exit_code`;
/// it does not return then. Throws Unavailable where the build has no MPI.
using ExitCodeOf = std::function<int(const std::exception& cause)>;
void run_on_mpi(const std::function<void(Communicator& world)>& body,
                MpiCollectives collectives = MpiCollectives::kOwn,
                const ExitCodeOf& exit_code = {});

/// The NCCL world: one MPI process (or one process) a GPU; collectives on device buffers.
/// Throws Unavailable where the build has no NCCL, the machine no GPU, or ranks outnumber GPUs.
void run_on_nccl(const std::function<void(Communicator& world)>& body);

}  // namespace kuafu
