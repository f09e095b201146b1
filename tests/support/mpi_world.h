// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kuafu/comm/communicator.h"

// For test programs that are started as MPI ranks: their main() is tests/support/mpi_main.cpp.
namespace kuafu::tests {

/// The ranks of this program; main() runs the tests inside.
Communicator& mpi_world();

/// Its first `ranks` ranks; null on the others. Collective. @pre there are so many
std::unique_ptr<Communicator> first_ranks(int ranks);

}  // namespace kuafu::tests
