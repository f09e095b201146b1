// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/mpi_tests.h"

int main(int argc, char** argv) {
  return kuafu::conformance::run_mpi_tests(argc, argv, kuafu::MpiCollectives::kNative);
}
