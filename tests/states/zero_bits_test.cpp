// SPDX-License-Identifier: Apache-2.0
//
// parallel.data.order = "fixed": all stages have the same bits.

#include <gtest/gtest.h>

#include "tests/states/zero_plans.h"
#include "tests/support/tensors.h"

namespace kuafu {
namespace {

using tests::is_same;
using tests::kStages;
using tests::train_replicas;
using tests::Trained;
using tests::with_idle;

Overrides fixed(const Overrides& more) {
  Overrides all = {{"model.dtype", "f32"}, {"parallel.data.order", "fixed"}, {"train.steps", "3"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// `replicas` replicas of micro-batches of two samples.
Overrides accumulated(int64_t replicas, int64_t micro_batches) {
  return {{"parallel.data", text(replicas)},
          {"train.batch", text(2 * replicas * micro_batches)},
          {"train.micro_batch", "2"}};
}

Plan idle_plan(int64_t stage, const Overrides& overrides, const Overrides& more = {}) {
  Overrides all = fixed(overrides);
  all.insert(all.end(), more.begin(), more.end());
  all.emplace_back("parallel.zero", text(stage));
  return with_idle(tests::small_plan(all));
}

Trained run(int64_t stage, const Overrides& overrides, const Overrides& more = {}) {
  return train_replicas(idle_plan(stage, overrides, more));
}

// The output is tied to the embedding, and one parameter is never used.
TEST(ZeroStages, AreBitIdenticalUnderAccumulation) {
  for (const int64_t replicas : {2, 3, 5}) {
    for (const int64_t micro_batches : {1, 2, 5}) {
      const Overrides overrides = accumulated(replicas, micro_batches);
      const Trained plain = run(0, overrides);
      for (int64_t stage = 1; stage <= kStages; ++stage) {
        EXPECT_TRUE(is_same(run(stage, overrides), plain))
            << "ZeRO-" << stage << ", " << replicas << " replicas, " << micro_batches
            << " micro-batches";
      }
    }
  }
}

// From a bucket a tensor to one for five models.
TEST(ZeroStages, AreBitIdenticalForEveryBucketAndOverlap) {
  const Overrides overrides = accumulated(3, 2);
  const Trained plain = run(0, overrides, {{"parallel.data.bucket", "1"}});
  for (int64_t stage = 0; stage <= kStages; ++stage) {
    for (const char* bytes : {"1", "1000", "20000", "1048576"}) {
      for (const char* overlap : {"true", "false"}) {
        EXPECT_TRUE(
            is_same(run(stage, overrides,
                        {{"parallel.data.bucket", bytes}, {"parallel.data.overlap", overlap}}),
                    plain))
            << "ZeRO-" << stage << ", bucket " << bytes << ", overlap " << overlap;
      }
    }
  }
}

TEST(ZeroStages, AreBitIdenticalBesideEveryKindOfParallelism) {
  for (const tests::Family& family : tests::zero_families()) {
    const auto at_stage = [&](int64_t stage) {
      return train_replicas(tests::zero_plan(family, stage, fixed({})));
    };
    const Trained plain = at_stage(0);
    for (int64_t stage = 1; stage <= kStages; ++stage) {
      EXPECT_TRUE(is_same(at_stage(stage), plain)) << family << ", ZeRO-" << stage;
    }
  }
}

TEST(ZeroStages, AreBitIdenticalUnderRecomputation) {
  const Overrides overrides = accumulated(2, 2);
  const Trained plain = run(0, overrides);
  for (int64_t stage = 0; stage <= kStages; ++stage) {
    for (const char* policy : {"selective", "full"}) {
      EXPECT_TRUE(is_same(run(stage, overrides, {{"memory.recompute", policy}}), plain))
          << "ZeRO-" << stage << ", recompute " << policy;
    }
  }
}

// An optimizer would decay it; replicas that reduce it would update it with zeros.
TEST(UnusedParameter, StaysAsItWasMadeUnderEveryStage) {
  for (int64_t stage = 0; stage <= kStages; ++stage) {
    for (const int64_t replicas : {1, 2, 3}) {
      Plan plan = idle_plan(stage, accumulated(replicas, 2));
      const Trained trained = train_replicas(plan);
      plan.train.steps = 0;
      const Trained made = train_replicas(plan);
      const auto stays = [&](const char* name) {
        return tests::is_same(trained.parameters.at(name), made.parameters.at(name));
      };
      EXPECT_TRUE(stays("idle.unused")) << "ZeRO-" << stage;
      EXPECT_FALSE(stays("idle.scale")) << "ZeRO-" << stage;
    }
  }
}

}  // namespace
}  // namespace kuafu
