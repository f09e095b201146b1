// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/loader.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/dataset/synthetic.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

TrainPlan batches(int64_t batch, int64_t micro_batch) {
  TrainPlan train;
  train.batch = batch;
  train.micro_batch = micro_batch;
  return train;
}

/// Inputs of a step as the replicas see them, in the order of their positions in the stream.
std::vector<int64_t> inputs_of_step(const Dataset& data, int64_t step, int64_t replicas,
                                    int64_t micro_batch) {
  std::vector<std::pair<int64_t, std::vector<int64_t>>> pieces;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    const Loader loader(data, batches(30, micro_batch), {replica, replicas});
    for (int64_t m = 0; m < loader.num_micro_batches(); ++m) {
      pieces.emplace_back(loader.first_sample(step, m), loader.train(step, m).inputs);
    }
  }
  std::sort(pieces.begin(), pieces.end());
  std::vector<int64_t> out;
  for (const auto& [position, inputs] : pieces) out.insert(out.end(), inputs.begin(), inputs.end());
  return out;
}

TEST(Loader, ReplicasShareOutTheSameBatch) {
  const SyntheticDataset data({64, 4, 1});
  for (const int64_t step : {0, 1, 17}) {
    const std::vector<int64_t> whole = data.train(30 * step, 30).inputs;
    for (const int64_t replicas : {1, 2, 3, 5}) {
      for (const int64_t micro_batch : {1, 2, 3, 6, 10, 15, 30}) {
        if (30 % (replicas * micro_batch) != 0) continue;
        EXPECT_EQ(inputs_of_step(data, step, replicas, micro_batch), whole)
            << replicas << " replicas, micro-batch " << micro_batch;
      }
    }
  }
}

TEST(Loader, SlicesAreDisjoint) {
  const SyntheticDataset data({64, 4, 1});
  for (const int64_t replicas : {1, 2, 3, 5}) {
    std::vector<int> taken(30, 0);
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const Loader loader(data, batches(30, 1), {replica, replicas});
      for (int64_t m = 0; m < loader.num_micro_batches(); ++m) {
        ++taken[static_cast<size_t>(loader.first_sample(0, m))];
      }
    }
    EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), 30) << replicas << " replicas";
  }
}

TEST(Loader, ResumesAtAnyStep) {
  const SyntheticDataset data({64, 4, 1});
  std::vector<Tokens> whole_run;
  const Loader loader(data, batches(6, 3), {1, 2});
  for (int64_t step = 0; step < 8; ++step) whole_run.push_back(loader.train(step, 0));
  const SyntheticDataset again({64, 4, 1});
  const Loader resumed(again, batches(6, 3), {1, 2});
  for (int64_t step = 5; step < 8; ++step) {
    EXPECT_EQ(resumed.train(step, 0), whole_run[static_cast<size_t>(step)]);
  }
}

TEST(Loader, DealsAsDrawnInItsComment) {
  const SyntheticDataset data({64, 4, 1});
  const Loader first(data, batches(8, 2), {0, 2}), second(data, batches(8, 2), {1, 2});
  EXPECT_EQ(first.num_micro_batches(), 2);
  EXPECT_EQ(first.first_sample(3, 0), 24);
  EXPECT_EQ(second.first_sample(3, 0), 26);
  EXPECT_EQ(first.first_sample(3, 1), 28);
  EXPECT_EQ(second.first_sample(3, 1), 30);
}

TEST(Loader, DealsValidationInTheSameWay) {
  const SyntheticDataset data({64, 4, 1});
  const Loader loader(data, batches(8, 2), {1, 2});
  EXPECT_EQ(loader.validation(1, 1), data.validation(14, 2));
}

TEST(Loader, RefusesBatchesThatDoNotDivide) {
  const SyntheticDataset data({64, 4, 1});
  expect_says(message_of<ConfigError>([&] {
                Loader(data, batches(8, 3), {0, 2});
              }),
              {"train.batch = 8", "2 replicas", "micro-batches of 3"});
  expect_says(message_of<ConfigError>([&] { Loader(data, batches(8, 0), {0, 2}); }), {"of 0"});
  expect_says(message_of<ConfigError>([&] {
                Loader(data, batches(8, 2), {2, 2});
              }),
              {"replica 2 of 2"});
}

}  // namespace
}  // namespace kuafu
