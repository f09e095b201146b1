// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/worlds.h"

namespace kuafu::conformance {

/// Runs all tests of this executable on all ranks, inside one MPI world; the exit status.
int run_mpi_tests(int argc, char** argv, MpiCollectives kind);

/// The world that they run in.
Communicator& world_of_tests();

}  // namespace kuafu::conformance
