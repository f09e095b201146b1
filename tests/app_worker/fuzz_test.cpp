// SPDX-License-Identifier: Apache-2.0
//
// kuafu fuzz: a seeded sample finds nothing, a wrong scheme is found and minimised, a campaign goes
// on where it ended.

#include <gtest/gtest.h>

#include <fstream>

#include "kuafu/record/json.h"
#include "tests/app_worker/process.h"

namespace kuafu {
namespace {

using tests::Arguments;
using tests::Ended;

Ended fuzz(const Arguments& more) {
  Arguments words = {tests::built("bin/kuafu"), "fuzz"};
  words.insert(words.end(), more.begin(), more.end());
  return tests::Child(words).wait(std::chrono::seconds(120));
}

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

TEST(Fuzz, FindsNothingInASample) {
  const Ended ran = fuzz({"--seconds", "8", "--plans", "150", "--seed", "14"});
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find(" equal"), std::string::npos) << ran.output;
}

// A scheme that is wrong whenever it is drawn.
TEST(Fuzz, FindsAWrongSchemeAndPrintsTheLeastPlan) {
  const tests::Folder folder;
  const std::string out = folder.path("plans.jsonl");
  const Ended ran = fuzz({"--seconds", "60", "--plans", "12", "--seed", "1", "--out", out,
                          "--plugin", tests::built("plugins/broken_1d.so")});
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_NE(ran.output.find("kuafu run /dev/null --certify"), std::string::npos) << ran.output;
  int64_t found = 0;
  for (const Json& line : lines_of(out)) {
    if (line["ending"] != "different") continue;
    ++found;
    EXPECT_NE(line["command"].get<std::string>().find("broken"), std::string::npos) << line;
  }
  EXPECT_GT(found, 0) << ran.output;
}

TEST(Fuzz, GoesOnBehindWhatTheFileHolds) {
  const tests::Folder folder;
  const std::string out = folder.path("plans.jsonl"), whole = folder.path("whole.jsonl");
  ASSERT_EQ(fuzz({"--seconds", "60", "--plans", "4", "--seed", "3", "--out", out}).code, 0);
  ASSERT_EQ(fuzz({"--seconds", "60", "--plans", "9", "--seed", "3", "--out", out}).code, 0);
  ASSERT_EQ(fuzz({"--seconds", "60", "--plans", "9", "--seed", "3", "--out", whole}).code, 0);
  EXPECT_EQ(lines_of(out), lines_of(whole));
  EXPECT_EQ(lines_of(out).size(), 9u);
  const Ended other = fuzz({"--seconds", "5", "--seed", "4", "--out", out});
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("holds seed 3"), std::string::npos) << other.output;
}

}  // namespace
}  // namespace kuafu
