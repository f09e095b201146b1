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
  plan.schedule = "linear";
  EXPECT_THROW(learning_rate(plan, 0, 3), ConfigError);
}

}  // namespace
}  // namespace kuafu
