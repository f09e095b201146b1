// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/suite.h"

namespace kuafu {
namespace {

const std::string kPointHead = "[suite]\nname = \"s\"\n";

std::string value_in(const Suite& suite, size_t i, const std::string& key) {
  return case_value(suite.cases.at(i), key).value_or("none");
}

std::string point_error(const std::string& toml, const SuiteOptions& options = {}) {
  try {
    parse_suite(kPointHead + toml, "s.toml", options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

void expect_point_error(const std::string& toml, const std::vector<std::string>& words) {
  const std::string message = point_error(toml);
  for (const auto& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  }
}

TEST(PointFormulas, FollowFromOtherSettingsAndTheBase) {
  const Suite suite = parse_suite(kPointHead + R"toml(
[base.model]
hidden = 128
[grid]
ranks = [2, 4]
train.batch = ["= ranks * 4", "= max(8, model.hidden / 64)"]
[[policy]]
name = "scaled"
optimizer.lr = "= 0.001 * train.batch / 8"
train.steps = "= model.layers + 1"
)toml",
                                  "s.toml");
  ASSERT_EQ(suite.cases.size(), 3U);  // on two ranks both make a batch of 8
  EXPECT_EQ(suite.cases[0].name, "2 ranks, batch 8, scaled");
  EXPECT_EQ(suite.cases[1].name, "4 ranks, batch 16, scaled");
  EXPECT_EQ(value_in(suite, 1, "train.batch"), "16");
  EXPECT_EQ(value_in(suite, 1, "optimizer.lr"), "0.002");
  EXPECT_EQ(value_in(suite, 1, "train.steps"), "3");  // of the default of two layers
  EXPECT_EQ(suite.notes.size(), 1U);
}

TEST(PointFormulas, StandWhereverAValueIs) {
  const Suite suite = parse_suite(kPointHead + R"(
[base.train]
batch = "= 8 * ranks"
steps = "$layers"
[[strategy]]
name = "data"
ranks = [2, 4]
model.layers = 3
parallel.data = "= ranks / 2"
parallel.tensor = { mode = "1d", size = "= ranks / parallel.data" }
[[case]]
name = "one more"
ranks = 2
model.layers = 1
model.hidden = "= 32 * ranks"
)",
                                  "s.toml");
  ASSERT_EQ(suite.cases.size(), 3U);
  EXPECT_EQ(value_in(suite, 1, "train.batch"), "32");
  EXPECT_EQ(value_in(suite, 1, "parallel.data.size"), "2");
  EXPECT_EQ(value_in(suite, 1, "parallel.tensor.size"), "2");
  EXPECT_EQ(value_in(suite, 1, "train.steps"), "3");
  EXPECT_EQ(value_in(suite, 2, "model.hidden"), "64");
  EXPECT_EQ(value_in(suite, 2, "train.steps"), "1");
}

TEST(PointFormulas, SeeWhatSetGives) {
  SuiteOptions options;
  options.overrides = {{"model.hidden", "32"}};
  const Suite suite =
      parse_suite(kPointHead + "[grid]\nranks = [1]\ntrain.batch = [\"= model.hidden / 4\"]\n",
                  "s.toml", options);
  EXPECT_EQ(value_in(suite, 0, "train.batch"), "8");
}

TEST(PointFormulas, TellWhatIsWrongWithKeyLineFormulaAndValues) {
  const std::string grid = "[grid]\nranks = [4]\ntrain.batch = [\"";
  expect_point_error(grid + "= ranks / 3\"]\n", {"s.toml:5: train.batch = \"= ranks / 3\"",
                                                 "ranks = 4", "1.333", "whole number", "floor()"});
  expect_point_error(grid + "= rank * 2\"]\n",
                     {"s.toml:5", "no key rank", "did you mean \"ranks\""});
  expect_point_error(grid + "= hiden * 2\"]\n", {"s.toml:5", "hiden", "\"model.hidden\""});
  expect_point_error(grid + "= hidden * 2\"]\n",
                     {"no key hidden", "did you mean \"model.hidden\""});
  expect_point_error(grid + "= ranks / (ranks - 4)\"]\n", {"s.toml:5", "division by zero: 4 / 0"});
  expect_point_error(grid + "= ranks +\"]\n", {"s.toml:5", "expected a number"});
  expect_point_error(grid + "= mean(ranks)\"]\n", {"s.toml:5", "mean() looks at finished cases"});
  expect_point_error(grid + "= at(ranks = 1, ranks)\"]\n",
                     {"s.toml:5", "at() looks at finished cases"});
  expect_point_error(grid + "= train.micro_batch * 2\"]\n", {"s.toml:5", "auto"});
  expect_point_error(grid + "= model.kind\"]\n", {"s.toml:5", "train.batch", "gpt"});
}

TEST(PointFormulas, BlameTheKeyThatIsNotWhole) {
  const std::string error = point_error(
      "[grid]\nranks = [4]\ntrain.batch = [16.5]\ntrain.micro_batch = [\"= train.batch / 4\"]\n");
  EXPECT_TRUE(error.starts_with("s.toml:5: train.batch = 16.5: expected a whole number")) << error;
}

TEST(PointFormulas, RefuseCircles) {
  expect_point_error(
      "[[strategy]]\nname = \"a\"\ntrain.batch = \"= model.hidden / 8\"\n"
      "model.hidden = \"= train.batch * 8\"\n",
      {"s.toml:5", "circle", "train.batch -> model.hidden -> train.batch"});
  expect_point_error("[[strategy]]\nname = \"a\"\ntrain.batch = \"$train.batch\"\n",
                     {"s.toml:5", "circle: train.batch -> train.batch"});
}

}  // namespace
}  // namespace kuafu
