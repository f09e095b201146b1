// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/experiment/timing.h"
#include "tests/experiment/derivation.h"

namespace kuafu {
namespace {

using test::Derivation;

const std::string kOne = "one rank, batch 8", kTwo = "data, 2 ranks, batch 8";
const std::string kSpeedUp = "at(strategy = 'one rank', step_time_s.median) / step_time_s.median";
const std::string kFaster = "step_time_s.median < at(strategy = 'one rank', step_time_s.median)";
const std::string kPair = "where = { ranks = 2, batch = 8 }\n";

/// Rounds of these medians in seconds, each with 0.1 % of error within its process.
void set_rounds(Json& line, const std::vector<double>& medians) {
  line["rounds"] = Json::array();
  for (const double median : medians) {
    line["rounds"].push_back(
        {{"round", line["rounds"].size() + 1},
         {"status", "ok"},
         {"tokens_per_s", 512 / median},
         {"step_time_s", {{"median", median}, {"ci95", {0.999 * median, 1.001 * median}}}}});
  }
  line["timing"] = timing_of(line["rounds"]);
}

class PairedFormula : public Derivation {
 protected:
  /// The second round is three times as slow for both; the ratio is 2 but for 1 %.
  void SetUp() override {
    read("");
    set_rounds(line(kOne), {0.080, 0.240, 0.0808});
    set_rounds(line(kTwo), {0.040, 0.120, 0.0400});
  }

  Value value(const std::string& formula, const std::string& more = "") {
    const auto before = record_.cases;
    read(more + "[[column]]\nname = \"asked\"\nformula = \"" + formula + "\"\n");
    record_.cases = before;
    const Rows all = rows();
    for (size_t i = 0; i < all.all().size(); ++i) {
      if (all.all()[i].name == kTwo) return all.value(i, "asked", Rows::Reading::kStrict);
    }
    return Value::absent("no such case");
  }
};

TEST_F(PairedFormula, HasTheIntervalOfTheRatioWithinEachRound) {
  const Value found = value(kSpeedUp);
  const Json ratio = paired_step_ratio(line(kTwo), line(kOne));
  EXPECT_NEAR(found.number, ratio["median"].get<double>(), 1e-12);
  EXPECT_NEAR(found.low, ratio["ci95"][0].get<double>(), 1e-12);
  EXPECT_NEAR(found.high, ratio["ci95"][1].get<double>(), 1e-12);
  EXPECT_LT(found.high / found.low, 1.06);
  // Rates of both sides say the same.
  const Value of_rates = value("tokens_per_s / at(strategy = 'one rank', tokens_per_s)");
  EXPECT_NEAR(of_rates.low, found.low, 1e-9);
  // A single case keeps the interval over its rounds, in which the slow one is.
  const Value alone = value("step_time_s.median");
  EXPECT_GT(alone.high / alone.low, 10);
}

TEST_F(PairedFormula, OfRoundsOfTwoCallsIsOfTheirMedians) {
  for (Json& l : record_.cases) {
    for (Json& round : l["rounds"]) {
      round["sweep"] = l["name"] == kOne ? "2026-01-05T12:00:00Z" : "2026-01-09T12:00:00Z";
    }
  }
  const Value found = value(kSpeedUp);
  EXPECT_EQ(paired_step_ratio(line(kTwo), line(kOne))["rounds"], 0);
  EXPECT_GT(found.high / found.low, 10);  // the slow minute is in it
}

TEST_F(PairedFormula, OfColumnsAndAggregatesIsPairedToo) {
  const std::string above =
      "[[column]]\nname = \"over one\"\nformula = \"step_time_s.median / at(strategy = 'one rank', "
      "step_time_s.median)\"\n[[column]]\nname = \"gain\"\nformula = \"1 - `over one`\"\n";
  const Value gain = value("2 * gain", above);
  EXPECT_NEAR(gain.number, 1, 0.01);
  EXPECT_LT(gain.high - gain.low, 0.06);
  EXPECT_EQ(verdict(kFaster, kPair), "holds");
  // Rows of one round keep the interval of all of them together.
  EXPECT_EQ(verdict("min(ranks = 1, batch = 8, step_time_s.median) > "
                    "1.9 * max(ranks = 2, batch = 8, step_time_s.median)",
                    "where = { batch = 8, ranks = [1, 2] }\n"),
            "holds");
}

TEST_F(PairedFormula, DecidesClaimsByTheRatioOfTheSides) {
  EXPECT_EQ(verdict(kFaster, kPair), "holds");
  EXPECT_EQ(
      verdict("step_time_s.median * 3 < at(strategy = 'one rank', step_time_s.median)", kPair),
      "fails");
  EXPECT_NE(results_[0].failing.at(0).find("round by round the left over the right is 1.5"),
            std::string::npos)
      << results_[0].failing[0];
  EXPECT_EQ(
      verdict("step_time_s.median * 2 < at(strategy = 'one rank', step_time_s.median)", kPair),
      "unresolved");
  EXPECT_NE(results_[0].open.at(0).find("round by round the left over the right is 1 (0.9"),
            std::string::npos)
      << results_[0].open[0];
  EXPECT_EQ(verdict("step_time_s.median * 2 < at(strategy = 'one rank', step_time_s.median)",
                    kPair + "within = 0.05\n"),
            "holds");
  EXPECT_EQ(verdict("step_time_s.median * 2 == at(strategy = 'one rank', step_time_s.median)",
                    kPair + "within = 0.05\n"),
            "holds");
}

/// Logarithms of a difference that happens to be positive would never reach 0.
TEST_F(PairedFormula, DifferencesMayBeOfEitherSign) {
  set_rounds(line(kOne), {0.040, 0.121, 0.0404});
  const std::string gain = "at(strategy = 'one rank', step_time_s.median) - step_time_s.median";
  const Value found = value(gain);
  EXPECT_GT(found.number, 0);
  EXPECT_LT(found.low, 0);
  EXPECT_EQ(verdict(gain + " > 0.000001", kPair), "unresolved");
  EXPECT_NE(results_[0].open.at(0).find("the left less the right is"), std::string::npos);
}

TEST_F(PairedFormula, NeedsTwoRoundsOfAllItsCases) {
  set_rounds(line(kOne), {0.080});
  const Value found = value(kSpeedUp);
  EXPECT_FALSE(found.is_absent());
  EXPECT_GT(found.high / found.low, 10);
  // The third round of one side failed: the two that both have count.
  set_rounds(line(kOne), {0.080, 0.240, 0.0808});
  line(kOne)["rounds"][2]["step_time_s"] = nullptr;
  line(kOne)["rounds"][2]["tokens_per_s"] = nullptr;
  const Value of_two = value(kSpeedUp);
  EXPECT_NEAR(of_two.number, 2, 1e-9);
  EXPECT_LT(of_two.high / of_two.low, 1.01);
  // Rounds are known by their numbers, whatever those are.
  for (const std::string& name : {kOne, kTwo}) line(name)["rounds"][1]["round"] = int64_t{1} << 60;
  EXPECT_EQ(value(kSpeedUp).low, of_two.low);
}

}  // namespace
}  // namespace kuafu
