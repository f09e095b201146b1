// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/tensor/tensor.h"
#include "tests/support/mpi_world.h"

namespace kuafu::tests {
namespace {

// Tests take no argument that could carry it.
Communicator* world = nullptr;

}  // namespace

Communicator& mpi_world() { return *world; }

std::unique_ptr<Communicator> first_ranks(int ranks) {
  return world->split([ranks](int r) { return SplitKey{r < ranks ? 0 : -1, r}; });
}

}  // namespace kuafu::tests

int main(int argc, char** argv) {
  kuafu::initialise_tensors();
  int failures = 0;
  kuafu::run_on_mpi([&](kuafu::Communicator& communicator) {
    kuafu::tests::world = &communicator;
    testing::InitGoogleTest(&argc, argv);
    failures = RUN_ALL_TESTS();
  });
  return failures;
}
