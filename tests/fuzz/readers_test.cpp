// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/plan/keys.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/supervise.h"
#include "tests/fuzz/toml_walk.h"
#include "tests/record/support.h"

namespace kuafu::fuzz {
namespace {

constexpr unsigned kLimitS = 20;

class Readers : public testing::TestWithParam<std::string> {};

TEST_P(Readers, TakeTheirValidInputs) {
  const Target target = make_target(GetParam());
  for (const std::string& bytes : target.valid) {
    EXPECT_NO_THROW(target.read(bytes)) << bytes.substr(0, 200);
  }
}

/// Inputs that a reader did wrong with once.
TEST_P(Readers, AreRightWithWhatWasKept) {
  const Target target = make_target(GetParam());
  const char* source = std::getenv("KUAFU_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "ctest sets KUAFU_SOURCE_DIR";
  const std::filesystem::path folder = std::string(source) + "/tests/fuzz/kept/" + target.name;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    EXPECT_EQ(wrong_with(target, test::read_text(entry.path()), kLimitS), "") << entry.path();
  }
}

/// 1.5 s of the campaign each, from its beginning: the twelve targets take 18 s.
TEST_P(Readers, GiveAnErrorOrTheValueAsWritten) {
  const Target target = make_target(GetParam());
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  uint64_t at = 0, values = 0, refused = 0;
  while (std::chrono::steady_clock::now() < end && at < 100'000) {
    const ReaderOutcome outcome = run_range(target, {1, at, at + 50}, kLimitS);
    ASSERT_EQ(outcome.wrong, "") << "input " << outcome.end - 1 << " of seed 1: "
                                 << mutated(target.valid, 1, outcome.end - 1).substr(0, 2000);
    at = outcome.end;
    values += outcome.values;
    refused += outcome.refused;
  }
  EXPECT_GT(refused, 0U);
  EXPECT_EQ(values + refused, at);
}

INSTANTIATE_TEST_SUITE_P(All, Readers, testing::ValuesIn(target_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// A key that no seed has is met by no mutation but by chance.
TEST(PlanSeeds, HaveEveryKeyOfTheKeyTable) {
  std::set<std::string> given;
  for (const std::string& seed : plan_seeds()) {
    for (const auto& [key, value] : leaves_of(toml_json(seed))) given.insert(whole_key(key));
  }
  for (const plan::Key& key : plan::keys()) {
    EXPECT_TRUE(given.contains(key.name)) << key.name << " is in no plan of toml_seeds.cpp";
  }
}

TEST(Supervision, TellsCrashesHangsAndFindingsApart) {
  Target target{"test", {"x"}, [](const std::string& bytes) {
                  if (bytes == "crash") std::abort();
                  if (bytes == "hang") {
                    while (true) ::pause();
                  }
                  if (bytes.find("bad") != std::string::npos)
                    throw std::logic_error("no ConfigError");
                  if (bytes == "silent") throw ConfigError("");
                  if (bytes == "latin") throw ConfigError("\xff");
                  if (bytes == "refused") throw ConfigError("no");
                }};
  EXPECT_EQ(wrong_with(target, "crash", 5), "signal 6");
  EXPECT_EQ(wrong_with(target, "hang", 1), "hang");
  EXPECT_NE(wrong_with(target, "bad", 5).find("no ConfigError"), std::string::npos);
  EXPECT_NE(wrong_with(target, "silent", 5), "");
  EXPECT_NE(wrong_with(target, "latin", 5), "");
  EXPECT_EQ(wrong_with(target, "refused", 5), "");
  EXPECT_EQ(wrong_with(target, "good", 5), "");
  EXPECT_EQ(minimised(target, std::string(300, 'x') + "bad" + std::string(99, 'y'),
                      wrong_with(target, "bad", 5), 5),
            "bad");
}

TEST(Mutations, AreTheSameOfTheSameNumber) {
  const std::vector<std::string> valid = {"alpha = 1\nbeta = 22\n", "gamma = [3, 4]\n"};
  size_t changed = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const std::string one = mutated(valid, 7, i);
    EXPECT_EQ(one, mutated(valid, 7, i));
    changed += one != valid[0] && one != valid[1] ? 1 : 0;
  }
  EXPECT_GT(changed, 800U);
}

}  // namespace
}  // namespace kuafu::fuzz
