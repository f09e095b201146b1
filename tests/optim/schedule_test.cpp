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

TEST(LearningRate, WarmsUpByEpochs) {
  OptimizerPlan plan;
  plan.lr = 0.6;
  plan.warmup = 2;
  plan.warmup_unit = "epochs";
  plan.epoch = 10;
  // 20 samples by 8 are 3 steps, the last of them not full; by 4 they are 5.
  const double expected[] = {0.2, 0.4, 0.6, 0.6};
  for (int64_t t = 0; t < 4; ++t) EXPECT_DOUBLE_EQ(learning_rate(plan, t, 9, 8), expected[t]) << t;
  EXPECT_DOUBLE_EQ(learning_rate(plan, 0, 9, 4), 0.12);
  EXPECT_THROW(learning_rate(plan, 0, 9), InternalError);
  plan.epoch = int64_t{1} << 53;  // products beyond 2^63 stay what they are: for ever
  plan.warmup = int64_t{1} << 40;
  EXPECT_LT(learning_rate(plan, 1000, 9, 1), 1e-12);
}

TEST(LearningRate, BeginsAgainWhereItWarmsUpAgain) {
  OptimizerPlan plan;
  plan.lr = 1;
  plan.warmup = 2;
  plan.rewarm_at = 7;
  const double flat[] = {0.5, 1, 1, 1, 1, 1, 1, 0.5, 1, 1};
  for (int64_t t = 0; t < 10; ++t) EXPECT_DOUBLE_EQ(learning_rate(plan, t, 10), flat[t]) << t;
  // A line of 7 steps down to 0.2, then another of 4.
  plan.schedule = "linear";
  plan.min_lr_ratio = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(plan, 0, 12), 0.5);
  for (int64_t t = 2; t < 7; ++t) {
    EXPECT_DOUBLE_EQ(learning_rate(plan, t, 12), 1 - 0.8 * static_cast<double>(t - 2) / 4) << t;
  }
  const double again[] = {0.5, 1, 1, 0.2};
  for (int64_t t = 0; t < 4; ++t) {
    EXPECT_NEAR(learning_rate(plan, 7 + t, 11), again[t], 1e-15) << t;
  }
  // Steps of the second part count from its beginning.
  plan.schedule = "step";
  plan.drop_every = 3;
  plan.drop_factor = 0.5;
  EXPECT_DOUBLE_EQ(learning_rate(plan, 6, 20), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(plan, 9, 20), 1);
  EXPECT_DOUBLE_EQ(learning_rate(plan, 12, 20), 0.5);
}

}  // namespace
}  // namespace kuafu
