// SPDX-License-Identifier: Apache-2.0
//
// main of tests that use tensors: allocators and own ops before the first tensor.

#include <gtest/gtest.h>

#include "kuafu/tensor/tensor.h"

int main(int argc, char** argv) {
  kuafu::initialise_tensors();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
