// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "kuafu/base/registry.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/plan.h"
#include "tests/base/messages.h"
#include "tests/plan/random_plan.h"

namespace kuafu {
namespace {

Plan resolved(const Plan& plan, int64_t ranks) {
  return resolve(plan, ranks, builtin_tensor_modes());
}

Plan with_tensor(const std::string& mode, int64_t size, int64_t depth = 1) {
  Plan plan;
  plan.parallel.tensor = {mode, size, depth};
  return plan;
}

TEST(Resolve, GivesDataTheRanksThatRemain) {
  const Plan plan = resolved(with_tensor("1d", 2), 8);
  EXPECT_EQ(plan.parallel.data.size, 4);
  EXPECT_EQ(plan.train.micro_batch, 2);
  EXPECT_EQ(plan.num_micro_batches(), 1);
  EXPECT_EQ(num_ranks(plan), 8);
}

TEST(Resolve, TakesThePlansOwnProductWithoutARankCount) {
  Plan plan = with_tensor("2.5d", 8, 2);
  EXPECT_EQ(num_ranks(resolved(plan, 0)), 8);
  plan.parallel.data.size = 2;
  EXPECT_EQ(num_ranks(resolved(plan, 0)), 16);
}

TEST(Resolve, KeepsAMicroBatchThatDivides) {
  Plan plan;
  plan.train.batch = 24;
  plan.train.micro_batch = 3;
  plan = resolved(plan, 2);
  EXPECT_EQ(plan.train.micro_batch, 3);
  EXPECT_EQ(plan.num_micro_batches(), 4);
}

TEST(Resolve, RefusesTensorsOfMoreBytesThanAreCounted) {
  Plan plan;
  plan.train.batch = plan.model.sequence = 1 << 24;
  plan.model.hidden = 1 << 20;
  expect_says(message_of<Refused>([&] { resolved(plan, 1); }),
              {"train.micro_batch = 16777216 times model.sequence = 16777216 times model.hidden = "
               "1048576 in f32",
               "(2^63)"});
  plan.train.micro_batch = 1 << 10;  // 2^10 2^24 2^22 4
  EXPECT_NO_THROW(resolved(plan, 1));
}

TEST(Resolve, IsIdempotentOnRandomPlans) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomPlan random = random_plan(seed);
    const Plan once = resolved(random.plan, random.ranks);
    EXPECT_EQ(resolved(once, random.ranks), once) << to_toml(random.plan);
    EXPECT_EQ(resolved(once, 0), once) << to_toml(random.plan);
  }
}

TEST(MeshAxes, CoverTheRanksOfRandomPlans) {
  const TensorModes modes = builtin_tensor_modes();
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomPlan random = random_plan(seed);
    const Plan plan = resolved(random.plan, random.ranks);
    EXPECT_EQ(num_ranks(plan), random.ranks);
    int64_t product = 1;
    for (const Axis& axis : mesh_axes(plan, modes)) product *= axis.size;
    EXPECT_EQ(product, random.ranks) << to_toml(plan);
    EXPECT_EQ(plan.num_micro_batches() * plan.train.micro_batch * plan.parallel.data.size,
              plan.train.batch);
  }
}

TEST(MeshAxes, StandOutermostFirst) {
  const Plan plan = resolved(with_tensor("2.5d", 8, 2), 16);
  EXPECT_EQ(
      mesh_axes(plan, builtin_tensor_modes()),
      (std::vector<Axis>{
          {"pipeline", 1}, {"data", 2}, {"sequence", 1}, {"dep", 2}, {"row", 2}, {"col", 2}}));
}

TEST(MeshAxes, RefuseAModeThatMiscounts) {
  TensorModes modes = builtin_tensor_modes();
  modes["odd"] = {"odd", "", [](int64_t size, int64_t) {
                    return std::vector<Axis>{{"odd", size + 1}};
                  }};
  modes["twin"] = {"twin", "", [](int64_t size, int64_t) {
                     return std::vector<Axis>{{"data", size}};
                   }};
  const auto message = [&](const std::string& mode) {
    return message_of<ConfigError>(
        [&] { mesh_axes(resolve(with_tensor(mode, 2), 2, modes), modes); });
  };
  expect_says(message("odd"), {"\"odd\"", "2 ranks on axes of 3"});
  expect_says(message("twin"), {"\"twin\"", "axis \"data\""});
}

TEST(MeshAxes, NeedAResolvedPlan) {
  expect_says(message_of<ConfigError>([] { mesh_axes(Plan{}, builtin_tensor_modes()); }),
              {"not resolved"});
  expect_says(message_of<ConfigError>([] { num_ranks(Plan{}); }), {"not resolved"});
}

TEST(Resolve, ListsThePlansNearAProductThatIsNotTheRanks) {
  Plan plan = with_tensor("1d", 4);
  plan.parallel.data.size = 2;
  expect_says(message_of<Refused>([&] { resolved(plan, 4); }),
              {"4 ranks were given", "takes 8: data 2 x pipeline 1 x tensor 4 x sequence 1",
               "nearest: data = 1, tensor.size = 2 with data = 2", "tensor.size = 1 with data = 4",
               "or 8 ranks"});
  plan = with_tensor("2.5d", 8, 2);
  plan.parallel.data.size = 2;
  expect_says(message_of<Refused>([&] { resolved(plan, 8); }),
              {"takes 16", "data = 1", "tensor.size = 4 with data = 2", "16 ranks"});
}

TEST(Resolve, ListsTheRankCountsNearOneThatDoesNotDivide) {
  expect_says(message_of<Refused>([] { resolved(with_tensor("1d", 4), 6); }),
              {"6 ranks were given", "replica takes 4: pipeline 1 x tensor 4 x sequence 1",
               "nearest: ", "4 ranks or 8 ranks"});
  expect_says(message_of<Refused>([] { resolved(with_tensor("2d", 4), 3); }),
              {"3 ranks were given", "4 ranks"});
}

// Every choice named is one that `resolve` accepts.
TEST(Resolve, AdvisesOnlyWhatItAccepts) {
  for (int64_t ranks = 1; ranks <= 40; ++ranks) {
    for (const int64_t size : {2, 3, 4, 6}) {
      Plan plan = with_tensor("1d", size);
      plan.model.hidden = 48;
      plan.model.heads = 12;
      plan.train.batch = 24;
      if (ranks % size == 0 && 24 % (ranks / size) == 0) {
        EXPECT_NO_THROW(resolved(plan, ranks));
        continue;
      }
      const std::string message = message_of<Refused>([&] { resolved(plan, ranks); });
      for (size_t at = message.find("tensor.size = ", message.find("nearest: "));
           at != std::string::npos; at = message.find("tensor.size = ", at + 1)) {
        Plan other = plan;
        other.parallel.tensor.size = std::stoll(message.substr(at + 14));
        EXPECT_NO_THROW(resolved(other, ranks)) << message;
      }
    }
  }
}

TEST(Resolve, RefusesBatchesThatTheRanksDoNotDivide) {
  expect_says(message_of<Refused>([] { resolved(Plan{}, 3); }),
              {"train.batch = 8", "parallel.data = 3", "(of 3 ranks)", "batch = 6 or 9",
               "or 2 or 4 ranks"});
}

// Whoever gave the ranks is told which ranks would do, not which parallel.data.
TEST(Resolve, AdvisesTheOptionThatGaveTheRanks) {
  const auto message = [](const Plan& plan, int64_t ranks) {
    return message_of<Refused>([&] { resolve(plan, ranks, builtin_tensor_modes(), "--ranks"); });
  };
  expect_says(message(with_tensor("1d", 2), 6), {"(of --ranks 6)", "or --ranks 4 or 8"});
  expect_says(message(with_tensor("1d", 4), 6), {"nearest: --ranks 4 or --ranks 8"});
  Plan plan;
  plan.parallel.data.size = 2;
  expect_says(message(plan, 4), {"takes 2", "nearest: --ranks 2", "data = 4"});
  expect_says(message(plan, 7), {"nearest: --ranks 2"});
}

TEST(Resolve, ChecksPlansThatProgramsFill) {
  Plan plan;
  plan.model.layers = -1;
  expect_says(message_of<ConfigError>([&] { resolved(plan, 1); }),
              {"model.layers = -1 is out of range", "nearest: 1"});
  plan = {};
  plan.train.seed = std::numeric_limits<uint64_t>::max();
  EXPECT_THROW(resolved(plan, 1), ConfigError);
  plan = {};
  plan.optimizer.lr = std::numeric_limits<double>::quiet_NaN();
  expect_says(message_of<ConfigError>([&] { resolved(plan, 1); }), {"not finite"});
  plan = {};
  plan.model.dtype = DType::kI32;
  expect_says(message_of<ConfigError>([&] { resolved(plan, 1); }), {"model.dtype = \"i32\""});
  plan = {};
  plan.parallel.pipeline.size = 2;
  plan.parallel.pipeline.schedule = "gpip";
  // Names of schedules are the registry's, which the caller hands over.
  expect_says(message_of<NotFound>([&] {
                plan::check_schedule(plan, {"1f1b", "gpipe"}, {});
              }),
              {"nearest: \"gpipe\""});
}

TEST(Resolve, RefusesRankCountsOutOfRange) {
  EXPECT_THROW(resolved(Plan{}, -1), ConfigError);
  EXPECT_THROW(resolved(Plan{}, int64_t{1} << 40), ConfigError);
  Plan plan = with_tensor("1d", 1 << 20);
  plan.parallel.data.size = 1 << 20;
  plan.train.batch = 1 << 20;
  expect_says(message_of<Refused>([&] { resolved(plan, 0); }), {"1099511627776 ranks", "limit"});
}

}  // namespace
}  // namespace kuafu
