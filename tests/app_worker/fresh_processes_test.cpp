// SPDX-License-Identifier: Apache-2.0
//
// What differs from process to process: a library that chooses its kernels at first calls, made by
// several threads at once (initialise_tensors).

#include <gtest/gtest.h>

#include <set>

#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

// Without choose_vector_kernels() one in some twenty differs: 150 that agree by chance are rarer than
// one in a thousand calls of this test.
TEST(FreshProcesses, HaveTheSameFirstLoss) {
  const tests::Arguments small = {
      "model.layers=1",         "model.hidden=64",         "model.heads=2",
      "model.sequence=32",      "train.batch=2",           "train.steps=1",
      "parallel.tensor.size=2", "parallel.tensor.mode=1d", "train.validation_batches=0"};
  std::set<double> losses;
  for (int process = 0; process < 150; ++process) {
    const tests::Ran ran = tests::run_worker(tests::kSmallPlan, tests::set(small));
    ASSERT_EQ(ran.code, 0) << ran.output;
    losses.insert(ran.document["loss"].at(0).get<double>());
  }
  EXPECT_EQ(losses.size(), 1u);
}

}  // namespace
}  // namespace kuafu
