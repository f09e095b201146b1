// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "kuafu/plan/plan.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

Plan parse(std::string_view toml, const Overrides& overrides = {}) {
  return parse_plan(toml, "plan.toml", builtin_tensor_modes(), overrides);
}

TEST(Overrides, ReplaceValues) {
  const std::string toml = "[train]\nsteps = 3\n[parallel]\ntensor = { mode = \"1d\", size = 2 }\n";
  const Plan plan = parse(toml, {{"train.steps", "5"},
                                 {"model.dtype", "f64"},
                                 {"parallel.tensor.mode", "2d"},
                                 {"parallel.tensor", "{ size = 4 }"},
                                 {"parallel.data.size", "2"},
                                 {"memory.device", "6 GB"},
                                 {"data.path", "1984"},
                                 {"train.steps", "6"}});
  EXPECT_EQ(plan.train.steps, 6);
  EXPECT_EQ(plan.model.dtype, DType::kF64);
  EXPECT_EQ(plan.parallel.tensor, (TensorPlan{"2d", 4, 1}));
  EXPECT_EQ(plan.parallel.data.size, 2);
  EXPECT_EQ(plan.memory.device, 6'000'000'000);
  EXPECT_EQ(plan.data.path, "1984");
}

TEST(Overrides, AreNamedInErrors) {
  const auto refused = [](const std::string& key, const std::string& value) {
    return message_of<ConfigError>([&] { parse("[train]\nsteps = 3\n", {{key, value}}); });
  };
  expect_says(refused("train.steps", "0"),
              {"--set train.steps: ", "train.steps = 0", "nearest: 1"});
  expect_says(refused("train.steps", "many"), {"--set train.steps: ", "\"many\" is a string"});
  expect_says(refused("train.stps", "3"), {"--set train.stps: ", "nearest: train.steps"});
  expect_says(refused("train", "3"), {"--set train: ", "a section [train]"});
  expect_says(refused("train.steps", "5\nseed = 3"), {"--set train.steps: ", "is a string"});
  expect_says(message_of<Refused>([] {
                parse("", {{"model.heads", "3"}});
              }),
              {"--set model.heads: ", "model.heads = 3"});
}

// Whatever the text, the answer is a plan that prints and reads back, or a message with its place.
TEST(Documents, DamagedOnesNeverEndInAnythingButAMessage) {
  const std::string whole = to_toml(Plan{});
  std::mt19937_64 engine(1);
  int num_plans = 0, num_messages = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string damaged = whole;
    for (uint64_t edits = 1 + engine() % 3; edits > 0; --edits) {
      const size_t at = engine() % damaged.size();
      const char other = whole[engine() % whole.size()];
      if (engine() % 3 == 0) damaged.erase(at, 1 + engine() % 4);
      if (engine() % 3 == 0) damaged.insert(at, 1, other);
      if (engine() % 3 == 0) damaged[std::min(at, damaged.size() - 1)] = other;
    }
    try {
      const Plan plan = parse(damaged);
      EXPECT_EQ(parse(to_toml(plan)), plan);
      ++num_plans;
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()).find("plan.toml:"), 0u) << error.what();
      ++num_messages;
    }
  }
  EXPECT_GT(num_plans, 100);
  EXPECT_GT(num_messages, 1000);
}

}  // namespace
}  // namespace kuafu
