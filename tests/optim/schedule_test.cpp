// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/optim/optimizer.h"

namespace kuafu {
namespace {

TEST(LearningRate, WarmsUpLinearlyThenStays) {
  OptimizerPlan plan;
  plan.lr = 0.8;
  plan.warmup = 4;
  const double expected[] = {0.2, 0.4, 0.6, 0.8, 0.8, 0.8};
  for (int64_t t = 0; t < 6; ++t) EXPECT_DOUBLE_EQ(learning_rate(plan, t, 6), expected[t]) << t;
}

TEST(LearningRate, FollowsACosineFromTheFullRateToTheFinalOne) {
  OptimizerPlan plan;
  plan.lr = 1;
  plan.schedule = "cosine";
  plan.warmup = 2;
  plan.min_lr_ratio = 0.2;
  const int64_t steps = 13;  // after warm-up: t = 2 .. 12
  EXPECT_DOUBLE_EQ(learning_rate(plan, 0, steps), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(plan, 2, steps), 1);
  EXPECT_DOUBLE_EQ(learning_rate(plan, 7, steps), 0.6);  // half way: the mean of both ends
  EXPECT_DOUBLE_EQ(learning_rate(plan, 12, steps), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(plan, 40, steps), 0.2);
}

TEST(LearningRate, SurvivesRunsShorterThanTheirWarmUp) {
  OptimizerPlan plan;
  plan.schedule = "cosine";
  plan.warmup = 5;
  EXPECT_DOUBLE_EQ(learning_rate(plan, 2, 3), plan.lr * 3 / 5);
  EXPECT_DOUBLE_EQ(learning_rate(plan, 5, 3), plan.lr);
}

TEST(LearningRate, RefusesAnUnknownSchedule) {
  OptimizerPlan plan;
  plan.schedule = "sine";
  EXPECT_THROW(learning_rate(plan, 0, 3), ConfigError);
  plan.schedule = "constant";
  plan.scale_lr = "cubic";
  EXPECT_THROW(learning_rate(plan, 0, 3, 8), ConfigError);
}

TEST(LearningRate, FallsAlongALineAPowerOrSteps) {
  OptimizerPlan plan;
  plan.lr = 1;
  plan.warmup = 2;
  plan.min_lr_ratio = 0.2;
  const int64_t steps = 13;  // after warm-up: t = 2 .. 12
  for (const auto& [schedule, half] :
       {std::pair("linear", 0.2 + 0.8 * 0.5), std::pair("polynomial", 0.2 + 0.8 * 0.125)}) {
    plan.schedule = schedule;
    plan.power = 3;
    EXPECT_DOUBLE_EQ(learning_rate(plan, 0, steps), 0.5) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(plan, 2, steps), 1) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(plan, 7, steps), half) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(plan, 12, steps), 0.2) << schedule;
    EXPECT_DOUBLE_EQ(learning_rate(plan, 40, steps), 0.2) << schedule;
  }
  plan.schedule = "step";
  plan.drop_every = 3;
  plan.drop_factor = 0.5;
  const double expected[] = {0.5, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25};
  for (int64_t t = 0; t < 9; ++t) EXPECT_DOUBLE_EQ(learning_rate(plan, t, 6), expected[t]) << t;
}

TEST(LearningRate, FollowsTheBatch) {
  OptimizerPlan plan;
  plan.lr = 0.1;
  plan.base_batch = 16;
  plan.scale_lr = "linear";
  EXPECT_DOUBLE_EQ(learning_rate(plan, 0, 3, 64), 0.4);
  plan.scale_lr = "sqrt";
  EXPECT_DOUBLE_EQ(learning_rate(plan, 0, 3, 64), 0.2);
  plan.warmup = 4;  // up to the rate of the batch
  EXPECT_DOUBLE_EQ(learning_rate(plan, 0, 3, 64), 0.05);
  EXPECT_THROW(learning_rate(plan, 0, 3), InternalError);
}

}  // namespace
}  // namespace kuafu
