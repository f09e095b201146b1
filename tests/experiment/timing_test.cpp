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
    return judge_times({{std::log(ratio), error}}, 0.05, Errors::kOfRounds).front();
  };
  EXPECT_EQ(judged(1.00, 0.01), Timing::kSame);
  EXPECT_EQ(judged(1.00, 0.05), Timing::kInconclusive);
  EXPECT_EQ(judged(1.04, 0.02), Timing::kInconclusive);
  EXPECT_EQ(judged(1.20, 0.02), Timing::kSlower);
  EXPECT_EQ(judged(1.20, 0.10), Timing::kInconclusive);
  EXPECT_EQ(judged(0.80, 0.02), Timing::kFaster);
  EXPECT_EQ(judge_times({{std::log(1.2), 0.02}}, 0.5).front(), Timing::kSame);
}

// Of one process a side nothing tells how much the next would differ.
TEST(Timing, OfFewProcessesIsNeverSlowerOrFaster) {
  std::vector<StepRatio> ratios(3, StepRatio{0.0, 0.01});
  for (const double factor : {1.7, 1 / 1.7}) {
    ratios[0].log = std::log(factor);
    EXPECT_EQ(judge_times(ratios, 0.05).front(), Timing::kInconclusive) << factor;
    EXPECT_EQ(judge_times(ratios, 0.05, Errors::kMixed).front(), Timing::kInconclusive) << factor;
    EXPECT_EQ(judge_times(ratios, 0.05).back(), Timing::kSame) << factor;
  }
  ratios[0] = {std::log(1.7), 0};  // estimated, not timed
  EXPECT_EQ(judge_times(ratios, 0.05).front(), Timing::kSlower);
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

TEST(Timing, LetsNoSlowerCaseHideItselfWhereThereAreRounds) {
  std::vector<StepRatio> ratios(6, StepRatio{0.0, 0.02});
  ratios[0].log = ratios[1].log = std::log(1.3);
  EXPECT_EQ(judge_times(ratios, 0.05).front(), Timing::kInconclusive);
  EXPECT_EQ(judge_times(ratios, 0.05, Errors::kOfRounds).front(), Timing::kSlower);
  // A whole run in a slow hour still says nothing of the program.
  const std::vector<StepRatio> slow_hour(18, StepRatio{0.2, 0.005});
  for (const Timing timing : judge_times(slow_hour, 0.05, Errors::kOfRounds)) {
    EXPECT_EQ(timing, Timing::kInconclusive);
  }
}

TEST(Timing, NeedsFourCasesForTheScatter) {
  EXPECT_EQ(process_scatter(std::vector<StepRatio>(3, {0.2, 0.0})), 0);
  EXPECT_NEAR(process_scatter(std::vector<StepRatio>(4, {0.2, 0.0})), 0.2, 1e-15);
  EXPECT_EQ(process_scatter(std::vector<StepRatio>(4, {0.1, 0.2})),
            0);  // all of it is within the processes
  EXPECT_NEAR(process_scatter(std::vector<StepRatio>(4, {0.1, 0.2}), Errors::kMixed), 0.1, 1e-15);
}

/// Rounds of a case: processes that differ by `scatter`, a tenth of them a third slower (somebody
/// else's program), each known to `error`. In logarithms.
struct Machine {
  double scatter = 0.05, error = 0.02;
  double slow_share = 0.1, slow_by = 0.3;

  Json rounds(double step_s, int64_t number, const CounterRandom& random, uint64_t draw) const {
    Json all = Json::array();
    for (int64_t r = 1; r <= number; ++r) {
      const auto at = draw * 1000 + static_cast<uint64_t>(r) * 10;
      const bool is_slow = random.uniform(at + 2) < slow_share;
      const double median =
          step_s * std::exp(scatter * random.normal(at) + error * random.normal(at + 1) +
                            (is_slow ? slow_by : 0));
      const double half = 1.96 * error;
      all.push_back(
          {{"round", r},
           {"status", "ok"},
           {"step_time_s",
            {{"median", median}, {"ci95", {median * std::exp(-half), median * std::exp(half)}}}},
           {"tokens_per_s", 256 / median}});
    }
    return all;
  }
};

TEST(Timing, KnowsStudentsT) {
  EXPECT_NEAR(student_95(1), 12.7062, 1e-3);
  EXPECT_NEAR(student_95(2), 4.3027, 1e-3);
  EXPECT_NEAR(student_95(5), 2.5706, 1e-3);
  EXPECT_NEAR(student_95(10), 2.2281, 1e-3);
  EXPECT_NEAR(student_95(1000), 1.9623, 1e-3);
}

TEST(Timing, OfOneRoundIsThatOfItsProcess) {
  const CounterRandom random(1, hash_name("one"));
  Json rounds = Machine{}.rounds(0.01, 2, random, 0);
  rounds[1]["status"] = "failed";
  const Json timing = timing_of(rounds);
  EXPECT_EQ(timing["rounds"], 1);
  EXPECT_EQ(timing["step_time_s"], rounds[0]["step_time_s"]);
  EXPECT_DOUBLE_EQ(timing["tokens_per_s"], rounds[0]["tokens_per_s"]);
  rounds[0]["status"] = "timeout";
  EXPECT_TRUE(timing_of(rounds).is_null());
}

TEST(Timing, OfSeveralRoundsIsTheirMedianWithWhatTheyDifferBy) {
  const auto round = [](double median, double half) {
    return Json{
        {"status", "ok"},
        {"step_time_s",
         {{"median", median}, {"ci95", {median * std::exp(-half), median * std::exp(half)}}}},
        {"tokens_per_s", 1 / median}};
  };
  const Json timing = timing_of({round(1.0, 0.01), round(4.0, 0.01), round(2.0, 0.01)});
  EXPECT_NEAR(timing["step_time_s"]["median"], 2.0, 1e-12);
  EXPECT_NEAR(timing["tokens_per_s"], 0.5, 1e-12);
  // The logarithms' standard deviation is log 2.
  const double half =
      student_95(2) * std::sqrt(std::acos(-1.0) / 2) * std::log(2.0) / std::sqrt(3.0);
  EXPECT_NEAR(std::log(timing["step_time_s"]["ci95"][1].get<double>() / 2), half, 1e-9);
  // Rounds that agree by chance are known no better than their processes.
  const Json agreed = timing_of({round(1.0, 0.1), round(1.0, 0.1)});
  EXPECT_NEAR(std::log(agreed["step_time_s"]["ci95"][1].get<double>()), 0.1 / std::sqrt(2.0), 1e-9);
}

TEST(Timing, IntervalsOfRoundsHoldWhatTheyEstimate) {
  const CounterRandom random(2, hash_name("coverage"));
  const Machine steady{0.05, 0.02, 0, 0};
  for (const int64_t number : {2, 3, 5, 8}) {
    int inside = 0;
    for (uint64_t i = 0; i < 2000; ++i) {
      const Json ci = timing_of(steady.rounds(1.0, number, random, i))["step_time_s"]["ci95"];
      inside += ci[0] <= 1.0 && ci[1] >= 1.0 ? 1 : 0;
    }
    EXPECT_GE(inside, 1900 - 20) << number << " rounds";  // 95 %, less two standard errors
    EXPECT_LE(inside, 1990) << number << " rounds";       // and not by being endless
  }
}

/// How often each verdict falls where B's case `slower` takes `factor` times as long as A's: over
/// `sweeps` comparisons of 18 cases.
struct Verdicts {
  int of_all[5] = {}, of_slower[5] = {};
};
Verdicts compared(const Machine& machine, int64_t rounds, double factor, uint64_t sweeps) {
  const CounterRandom random(5, hash_name("sweeps"));
  Verdicts counts;
  for (uint64_t sweep = 0; sweep < sweeps; ++sweep) {
    std::vector<StepRatio> ratios;
    for (uint64_t c = 0; c < 18; ++c) {
      const uint64_t draw = (sweep * 18 + c) * 2;
      const Json a = timing_of(machine.rounds(0.01, rounds, random, draw));
      const Json b =
          timing_of(machine.rounds(c == 7 ? 0.01 * factor : 0.01, rounds, random, draw + 1));
      ratios.push_back(*step_ratio(a, b));
    }
    const std::vector<Timing> verdicts =
        judge_times(ratios, 0.05, rounds > 1 ? Errors::kOfRounds : Errors::kOfOneProcess);
    for (const Timing timing : verdicts) ++counts.of_all[static_cast<size_t>(timing)];
    ++counts.of_slower[static_cast<size_t>(verdicts[7])];
  }
  return counts;
}

TEST(Timing, TheSameProgramTwiceIsHardlyEverSlower) {
  constexpr auto kSlower = static_cast<size_t>(Timing::kSlower);
  for (const int64_t rounds : {1, 2, 3, 5}) {
    const Verdicts v = compared(Machine{}, rounds, 1.0, 100);
    EXPECT_LE(v.of_all[kSlower], 9) << rounds << " rounds: of 1800";  // 0.5 %
  }
}

TEST(Timing, EnoughRoundsFindAStepThatIsAFifthSlower) {
  constexpr auto kSlower = static_cast<size_t>(Timing::kSlower);
  const Machine steady{0.03, 0.02, 0, 0}, disturbed{0.03, 0.02, 0.1, 0.3};
  EXPECT_GE(compared(steady, 10, 1.2, 50).of_slower[kSlower], 48);
  EXPECT_GE(compared(disturbed, 40, 1.2, 50).of_slower[kSlower], 45);
}

TEST(Timing, RatiosOfARoundLeaveOutWhatSlowsBothSides) {
  const auto line_of = [](const std::vector<double>& medians) {
    Json line = {{"document", Json::object()}};
    for (size_t r = 0; r < medians.size(); ++r) {
      line["rounds"].push_back(
          {{"round", r + 1},
           {"status", "ok"},
           {"step_time_s",
            {{"median", medians[r]}, {"ci95", {0.99 * medians[r], 1.01 * medians[r]}}}}});
    }
    return line;
  };
  const Json a = line_of({1.0, 3.0, 1.5, 0.9}), b = line_of({2.0, 6.1, 2.95});
  const Json ratio = paired_step_ratio(a, b);
  EXPECT_EQ(ratio["rounds"], 3);
  EXPECT_NEAR(ratio["median"], 2.0, 1e-12);
  EXPECT_GT(ratio["ci95"][0], 1.85);
  EXPECT_LT(ratio["ci95"][1], 2.15);
  // The medians over rounds, one over the other, know far less.
  const Json of_a = timing_of(a["rounds"]), of_b = timing_of(b["rounds"]);
  EXPECT_GT(step_ratio(of_a, of_b)->error, 0.3);
  EXPECT_EQ(paired_step_ratio(line_of({1.0}), b)["rounds"], 1);
  EXPECT_TRUE(paired_step_ratio(line_of({}), b).is_null());
}

TEST(Timing, RoundsOfTwoCallsAreNoPairWhateverTheirNumbers) {
  const auto line_of = [](const std::vector<std::pair<const char*, double>>& rounds) {
    Json line = {{"document", {{"step_time_s", {{"median", rounds.front().second}}}}}};
    for (size_t r = 0; r < rounds.size(); ++r) {
      const auto [sweep, median] = rounds[r];
      line["rounds"].push_back(
          {{"round", r + 1},
           {"sweep", sweep},
           {"status", "ok"},
           {"step_time_s", {{"median", median}, {"ci95", {0.99 * median, 1.01 * median}}}}});
    }
    line["timing"] = timing_of(line["rounds"]);
    return line;
  };
  const char *monday = "2026-01-05T12:00:00Z", *friday = "2026-01-09T12:00:00Z";
  const Json a = line_of({{monday, 1.0}, {monday, 1.1}, {friday, 3.0}});
  // The machine is slower by half on Friday: of the pairs that are, none shows it.
  const Json b = line_of({{monday, 2.0}, {monday, 2.2}, {monday, 2.1}});
  EXPECT_EQ(paired_step_ratio(a, b)["rounds"], 2);
  EXPECT_NEAR(paired_step_ratio(a, b)["median"], 2.0, 1e-12);
  const Json grown = line_of({{friday, 3.0}, {friday, 3.1}});
  EXPECT_EQ(paired_step_ratio(b, line_of({{friday, 3.0}, {friday, 3.1}, {friday, 3.2}}))["rounds"],
            0);
  const Json apart = paired_step_ratio(b, grown);
  EXPECT_EQ(apart["rounds"], 0);
  EXPECT_NEAR(apart["median"], std::sqrt(3.0 * 3.1) / 2.1, 1e-3);
  EXPECT_TRUE(apart["ci95"].is_null());  // two rounds
}

TEST(Timing, TakesADocumentsOwnTimeWhereALineHasNoRounds) {
  const Json own = {
      {"step_time_s", {{"median", 0.01}, {"ci95", {0.009, 0.011}}, {"samples", {0.01}}}},
      {"tokens_per_s", 100.0}};
  Json line = {{"document", own}};
  EXPECT_EQ(timed_document(line), own);
  line["timing"] = {{"rounds", 3},
                    {"step_time_s", {{"median", 0.02}, {"ci95", {0.015, 0.025}}}},
                    {"tokens_per_s", 50.0}};
  const Json timed = timed_document(line);
  EXPECT_EQ(timed["step_time_s"]["median"], 0.02);
  EXPECT_EQ(timed["step_time_s"]["rounds"], 3);
  EXPECT_EQ(timed["step_time_s"]["samples"], own["step_time_s"]["samples"]);
  EXPECT_EQ(timed["tokens_per_s"], 50.0);
  line["document"] = {{"status", "refused"}};
  line["timing"] = nullptr;
  EXPECT_EQ(timed_document(line), line["document"]);
}

TEST(Timing, ReadsNoRatioWhereATimeIsMissing) {
  const Json timed = {{"step_time_s", {{"median", 0.01}, {"ci95", {0.009, 0.011}}}}};
  const Json from_zero = {{"step_time_s", {{"median", 0.01}, {"ci95", {0.0, 0.011}}}}};
  EXPECT_TRUE(step_ratio(timed, timed));
  EXPECT_FALSE(step_ratio(timed, from_zero));
  EXPECT_FALSE(step_ratio(timed, Json::object()));
}

// One to five steps give no interval: such a ratio decides nothing, until rounds tell what it differs by.
TEST(Timing, OfTooFewStepsDecidesNothing) {
  const auto few = [](double median) {
    return Json{{"step_time_s", {{"median", median}, {"ci95", nullptr}}}};
  };
  const auto ratio = step_ratio(few(1), few(2));
  ASSERT_TRUE(ratio);
  EXPECT_DOUBLE_EQ(ratio->log, std::log(2.0));
  for (const size_t cases : {size_t{1}, size_t{5}}) {
    for (const Errors errors : {Errors::kOfOneProcess, Errors::kOfRounds, Errors::kMixed}) {
      const auto verdicts = judge_times(std::vector<StepRatio>(cases, *ratio), 0.05, errors);
      EXPECT_EQ(verdicts, std::vector<Timing>(cases, Timing::kInconclusive));
    }
  }
  EXPECT_EQ(shown_step_time(few(0.002)), "2.00 [-]");
  const auto round = [&](double median) {
    Json one = few(median);
    one["status"] = "ok";
    return one;
  };
  EXPECT_TRUE(timing_of(Json::array({round(1.0)}))["step_time_s"]["ci95"].is_null());
  const Json timing = timing_of(Json::array({round(1.0), round(1.01), round(1.02)}));
  EXPECT_NEAR(timing["step_time_s"]["median"], 1.01, 1e-12);
  EXPECT_GT(timing["step_time_s"]["ci95"][1], 1.02);
  EXPECT_LT(timing["step_time_s"]["ci95"][1], 1.06);
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
