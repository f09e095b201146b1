// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/ratios.h"

#include <gtest/gtest.h>

#include "tests/record/support.h"

namespace kuafu {
namespace {

/// A case of three rounds of this step time in ms, on two ranks under so many replicas.
Json line_of(const std::string& id, int64_t replicas, double ms) {
  Json line = test::sample_case(id, test::sample_document(2, 0));
  line["document"]["plan"]["parallel"] = {{"data", replicas}};
  line["document"]["plan"]["train"]["micro_batch"] = 8 / replicas;
  for (int round = 1; round <= 3; ++round) {
    const double slow = round == 2 ? 3 : 1;  // a slow round, for both
    const double median = 1e-3 * ms * slow;
    line["rounds"].push_back(
        {{"round", round},
         {"status", "ok"},
         {"step_time_s", {{"median", median}, {"ci95", {0.999 * median, 1.001 * median}}}},
         {"losses", "same"}});
  }
  return line;
}

Json base_of(const std::string& id, double ms) {
  Json line = line_of(id, 1, ms);
  line["settings"]["baseline"] = "some_style";
  return line;
}

TEST(Ratios, AreOfTheSameWorkAndTheSameRound) {
  Json other_work = line_of("c", 2, 1.0);
  other_work["document"]["plan"]["train"]["seed"] = 99;
  Json refuted = line_of("d", 2, 1.0);
  refuted["document"]["certificate"]["verdict"] = "different";
  const std::string table =
      ratio_table({line_of("a", 2, 5.0), other_work, refuted, base_of("b", 10.0)});
  EXPECT_NE(table.find("2.00 [2.00, 2.00]       3"), std::string::npos) << table;
  EXPECT_EQ(table.find("case c"), std::string::npos) << table;
  EXPECT_EQ(table.find("case d"), std::string::npos) << table;
}

TEST(Ratios, OfTwoRoundsOrOfEstimatesHaveNoInterval) {
  Json a = line_of("a", 2, 5.0), b = base_of("b", 10.0);
  for (Json* line : {&a, &b}) (*line)["rounds"].erase(2);
  EXPECT_NE(ratio_table({a, b}).find("2.00 [-]"), std::string::npos) << ratio_table({a, b});
  for (Json* line : {&a, &b}) (*line)["document"]["world"] = "simulated";
  EXPECT_NE(ratio_table({a, b}).find(" ~2.00 "), std::string::npos) << ratio_table({a, b});
}

TEST(Ratios, AreNoneWithoutABaseline) {
  EXPECT_EQ(ratio_table({line_of("a", 2, 5.0)}), "");
  EXPECT_EQ(ratio_table({base_of("b", 5.0)}), "");
}

}  // namespace
}  // namespace kuafu
