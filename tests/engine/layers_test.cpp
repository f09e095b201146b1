// SPDX-License-Identifier: Apache-2.0
//
// Layers with tensor modes of their own, side by side in one model.

#include <gtest/gtest.h>

#include "tests/support/plans.h"

namespace kuafu {
namespace {

using tests::certificate_of;
using tests::run_plan;
using tests::small_plan;

struct Mix {
  std::string name;
  Overrides overrides;
};

const std::vector<Mix>& mixes() {
  static const std::vector<Mix> all = {
      {"blocks_between_columns",
       {{"parallel.tensor", R"({ mode = "1d", size = 4 })"},
        {"model.layers", "4"},
        {"parallel.layers", R"([{ from = 1, to = 2, mode = "2d" }])"}}},
      {"columns_between_blocks",
       {{"parallel.tensor", R"({ mode = "2d", size = 4 })"},
        {"model.layers", "3"},
        {"parallel.data", "2"},
        {"parallel.layers",
         R"([{ from = 0, to = 0, mode = "1d-sp" }, { from = 2, to = 2, mode = "1d" }])"}}},
      {"tesseract_and_columns",
       {{"parallel.tensor", R"({ mode = "2.5d", size = 8, depth = 2 })"},
        {"model.layers", "3"},
        {"model.heads", "8"},
        {"model.vocab", "41"},
        {"parallel.layers", R"([{ from = 1, to = 2, mode = "1d" }])"}}},
      {"cube_tesseract_and_columns",
       {{"parallel.tensor", R"({ mode = "3d", size = 8 })"},
        {"model.layers", "4"},
        {"model.heads", "8"},
        {"parallel.layers",
         R"([{ from = 1, to = 1, mode = "1d" }, { from = 2, to = 3, mode = "2.5d", depth = 2 }])"}}},
      {"two_depths",
       {{"parallel.tensor", R"({ mode = "2.5d", size = 16, depth = 4 })"},
        {"train.batch", "16"},
        {"parallel.layers", R"([{ from = 1, to = 1, mode = "2d" }])"}}},
  };
  return all;
}

class MixedLayers : public testing::TestWithParam<Mix> {};

TEST_P(MixedLayers, EqualOneRankWithDropoutAndRecomputation) {
  Overrides overrides = GetParam().overrides;
  overrides.emplace_back("model.dropout", "0.1");
  for (const char* policy : {"none", "full"}) {
    overrides.emplace_back("memory.recompute", policy);
    const Certificate c = certificate_of(small_plan(overrides));
    EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  }
}

TEST_P(MixedLayers, AreCertifiedInMiniature) {
  Overrides overrides = GetParam().overrides;
  const Plan plan = small_plan(overrides);
  const Certificate c = certificate_of(plan, 1);
  EXPECT_EQ(c.verdict, "equal") << c.describe() << "; native " << c.native.describe();
  EXPECT_EQ(c.level, "scaled");
}

INSTANTIATE_TEST_SUITE_P(All, MixedLayers, testing::ValuesIn(mixes()),
                         [](const auto& info) { return info.param.name; });

/// Tables that are gathered for the tokens at hand (2 tokens >= vocabulary) and tables whose rows are
/// summed, under every pair of modes that share a grid of 4 or 8 ranks.
TEST(MixedLayers, EqualOneRankWhereverTheTableIsLookedUp) {
  struct Mode {
    const char* name;
    int64_t depth;
  };
  for (const auto& [size, modes] : std::vector<std::pair<int64_t, std::vector<Mode>>>{
           {4, {{"1d", 1}, {"1d-sp", 1}, {"2d", 1}}},
           {8, {{"1d-sp", 1}, {"2.5d", 2}, {"3d", 1}}}}) {
    for (const Mode& base : modes) {
      for (const Mode& layer : modes) {
        if (std::string(base.name) == layer.name) continue;
        for (const char* vocab : {"37", "200"}) {
          const Certificate c = certificate_of(
              small_plan({{"parallel.tensor", text("{ mode = \"", base.name, "\", size = ", size,
                                                   ", depth = ", base.depth, " }")},
                          {"parallel.layers", text("[{ from = 0, to = 0, mode = \"", layer.name,
                                                   "\", depth = ", layer.depth, " }]")},
                          {"model.heads", "8"},
                          {"model.sequence", "16"},
                          {"model.vocab", vocab}}));
          EXPECT_EQ(c.verdict, "equal") << base.name << ", then " << layer.name << " on " << size
                                        << ", vocabulary " << vocab << ": " << c.describe();
        }
      }
    }
  }
}

/// Two axes of the mesh shard the tokens, and the sequence is cut into 22, 21 and 21 places.
TEST(MixedLayers, LookUpPartsOfASequenceThatDiffer) {
  const Certificate c =
      certificate_of(small_plan({{"parallel.tensor", R"({ mode = "2d", size = 4 })"},
                                 {"parallel.sequence", R"({ mode = "ring", size = 3 })"},
                                 {"model.sequence", "64"}}));
  EXPECT_EQ(c.verdict, "equal") << c.describe();
}

TEST(MixedLayers, BookEachSchemeUnderItsOwnAxes) {
  const Plan plan = small_plan(mixes()[0].overrides);
  const TrafficByAxis traffic = run_plan(plan)[0].traffic;
  for (const char* axis : {"tensor", "row", "col"}) EXPECT_GT(traffic.at(axis).bytes_received, 0);
  EXPECT_EQ(traffic.at("tensor").peers, 3);
  EXPECT_EQ(traffic.at("row").peers, 1);
}

}  // namespace
}  // namespace kuafu
