// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/tensor/tensor.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  kuafu::initialise_tensors();
  return RUN_ALL_TESTS();
}
