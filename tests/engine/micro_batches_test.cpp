// SPDX-License-Identifier: Apache-2.0
#include "kuafu/engine/stepping/micro_batches.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "kuafu/dataset/synthetic.h"

namespace kuafu {
namespace {

constexpr int64_t kBatch = 30;

Plan plan_of(int64_t replicas, int64_t micro_batch) {
  Plan plan;
  plan.parallel.data.size = replicas;
  plan.train.batch = kBatch;
  plan.train.micro_batch = micro_batch;
  return plan;
}

/// What one replica reads of a step, or of a validation batch: token ids by index of the sample.
struct Read {
  std::vector<int64_t> firsts;
  std::vector<int64_t> ids;
};
Read read(const Dataset& data, int64_t replicas, int64_t micro_batch, bool is_training,
          int64_t index) {
  const Plan plan = plan_of(replicas, micro_batch);
  Read all;
  for (int64_t replica = 0; replica < replicas; ++replica) {
    MicroBatches batches(plan, data, nullptr, replica, at::kCPU);
    if (is_training) {
      batches.use_step(index);
    } else {
      batches.use_validation(5, index);
    }
    for (int m = 0; m < plan.num_micro_batches(); ++m) {
      const Side& side = batches.side(m);
      all.firsts.push_back(side.first_sample);
      const int64_t* const ids = side.tokens.const_data_ptr<int64_t>();
      all.ids.insert(all.ids.end(), ids, ids + side.tokens.numel());
      batches.release(m);
    }
  }
  return all;
}

TEST(MicroBatches, TakeTheSameSamplesHoweverManyReplicasShareThem) {
  const SyntheticDataset data({64, 4, 1});
  for (const int64_t replicas : {1, 2, 3, 5}) {
    for (const int64_t micro_batch : {1, 2, 3, 6, 10, 15, 30}) {
      if (kBatch % (replicas * micro_batch) != 0) continue;
      for (const int64_t step : {0, 1, 17}) {
        EXPECT_EQ(read(data, replicas, micro_batch, true, step).ids,
                  data.train(kBatch * step, kBatch).inputs)
            << replicas << " replicas, micro-batch " << micro_batch;
      }
      EXPECT_EQ(read(data, replicas, micro_batch, false, 1).ids,
                data.validation(kBatch, kBatch).inputs)
          << replicas << " replicas, micro-batch " << micro_batch;
    }
  }
}

TEST(MicroBatches, DealAsDrawnInTheirComment) {
  const SyntheticDataset data({64, 4, 1});
  Plan plan = plan_of(2, 2);
  plan.train.batch = 8;
  const std::vector<std::vector<int64_t>> drawn = {{0, 2}, {4, 6}};
  for (int64_t replica = 0; replica < 2; ++replica) {
    MicroBatches batches(plan, data, nullptr, replica, at::kCPU);
    batches.use_step(3);
    for (int m = 0; m < 2; ++m) {
      const int64_t first = drawn[static_cast<size_t>(replica)][static_cast<size_t>(m)];
      EXPECT_EQ(batches.side(m).first_sample, first);
      const Tensor expected = at::tensor(data.train(24 + first, 2).inputs).view({2, 4});
      EXPECT_TRUE(at::equal(batches.side(m).tokens, expected));
    }
  }
}

}  // namespace
}  // namespace kuafu
