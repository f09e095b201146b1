// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/meter/allocator.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  kuafu::install_allocators();
  return RUN_ALL_TESTS();
}
