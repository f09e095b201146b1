// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"

namespace kuafu {
namespace {

TEST(Timing, SaysWhereTheIntervalLies) {
  const auto judged = [](double ratio, double error) {
    return judge_times({{std::log(ratio), error}}, 0.05).front();
  };
  EXPECT_EQ(judged(1.00, 0.01), Timing::kSame);
  EXPECT_EQ(judged(1.00, 0.05), Timing::kInconclusive);
  EXPECT_EQ(judged(1.04, 0.02), Timing::kInconclusive);
  EXPECT_EQ(judged(1.20, 0.02), Timing::kSlower);
  EXPECT_EQ(judged(1.20, 0.10), Timing::kInconclusive);
  EXPECT_EQ(judged(0.80, 0.02), Timing::kFaster);
  EXPECT_EQ(judge_times({{std::log(1.2), 0.02}}, 0.5).front(), Timing::kSame);
}

TEST(Timing, KnowsFromAllCasesHowMuchProcessesDiffer) {
  // A process is 15 % slower or faster than the next, the intervals within each are narrow.
  const CounterRandom random(3, hash_name("processes"));
  std::vector<StepRatio> same_program;
  for (uint64_t i = 0; i < 18; ++i) {
    same_program.push_back({0.15 * (2 * random.uniform(i) - 1), 0.005});
  }
  for (const Timing timing : judge_times(same_program, 0.05)) {
    EXPECT_EQ(timing, Timing::kInconclusive);
  }
  // A whole run on a slower machine is no regression of all its cases.
  const std::vector<StepRatio> slow_minute(18, StepRatio{0.2, 0.005});
  for (const Timing timing : judge_times(slow_minute, 0.05)) {
    EXPECT_EQ(timing, Timing::kInconclusive);
  }
}

TEST(Timing, StillFindsTheOneCaseThatIsSlower) {
  std::vector<StepRatio> ratios(18, StepRatio{0.01, 0.01});
  ratios[7].log = std::log(1.5);
  const std::vector<Timing> verdicts = judge_times(ratios, 0.05);
  EXPECT_EQ(verdicts[7], Timing::kSlower);
  EXPECT_EQ(std::count(verdicts.begin(), verdicts.end(), Timing::kSlower), 1);
}

TEST(Timing, NeedsFourCasesForTheScatter) {
  EXPECT_EQ(process_scatter(std::vector<StepRatio>(3, {0.2, 0.0})), 0);
  EXPECT_NEAR(process_scatter(std::vector<StepRatio>(4, {0.2, 0.0})), 0.2, 1e-15);
  EXPECT_EQ(process_scatter(std::vector<StepRatio>(4, {0.1, 0.2})),
            0);  // all of it is within the processes
}

TEST(Timing, ReadsNoRatioWhereATimeIsMissing) {
  const Json timed = {{"step_time_s", {{"median", 0.01}, {"ci95", {0.009, 0.011}}}}};
  const Json from_zero = {{"step_time_s", {{"median", 0.01}, {"ci95", {0.0, 0.011}}}}};
  EXPECT_TRUE(step_ratio(timed, timed));
  EXPECT_FALSE(step_ratio(timed, from_zero));
  EXPECT_FALSE(step_ratio(timed, Json::object()));
}

TEST(Share, IsAPercentageOrAFraction) {
  EXPECT_EQ(parse_share("5%", "--x"), 0.05);
  EXPECT_EQ(parse_share("0.1", "--x"), 0.1);
  EXPECT_EQ(parse_share("0", "--x"), 0);
  for (const char* bad : {"5", "abc", "-1%", "101%", "", "%", "5%%", "nan"}) {
    try {
      parse_share(bad, "--x");
      FAIL() << bad;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(text("--x ", bad)), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("from 0% to 100%"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kuafu
