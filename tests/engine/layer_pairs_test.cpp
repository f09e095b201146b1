// SPDX-License-Identifier: Apache-2.0
//
// A layer of every tensor mode inside a model of every other, with small vocabularies, whose table
// is gathered, and large ones, whose rows are summed over all ranks.

#include <gtest/gtest.h>

#include <ostream>
#include <utility>
#include <vector>

#include "tests/support/plans.h"

namespace kuafu {
namespace {

/// A tensor mode on 4 or 8 ranks.
struct Side {
  std::string name, mode, depth = "1";
};

struct Pair {
  Side base, layer;
  std::string ranks;
};

std::ostream& operator<<(std::ostream& out, const Pair& p) {
  return out << p.base.mode << " with " << p.layer.mode << " on " << p.ranks;
}

/// All ordered pairs of modes that can be arranged on 4 ranks, and those on 8.
std::vector<Pair> pairs() {
  const std::vector<Side> on_4 = {
      {"t1d", "1d"}, {"t1d_sp", "1d-sp"}, {"t2d", "2d"}, {"t2p5d", "2.5d"}};
  const std::vector<Side> on_8 = {
      {"t1d", "1d"}, {"t1d_sp", "1d-sp"}, {"t2p5d", "2.5d", "2"}, {"t3d", "3d"}};
  std::vector<Pair> out;
  for (const auto& [sides, ranks] : {std::pair{on_4, "4"}, std::pair{on_8, "8"}}) {
    for (const Side& base : sides) {
      for (const Side& layer : sides) {
        if (base.mode != layer.mode) out.push_back({base, layer, ranks});
      }
    }
  }
  return out;
}

class LayerPairs : public testing::TestWithParam<Pair> {};

// 8 samples of 16 tokens. On p ranks a table is gathered over an axis of q from
// (q - 1) V / p <= T (1 - 1 / q) on, T the tokens looked up: 40 rows always are, 4,000 never.
TEST_P(LayerPairs, EqualOneRankWithSmallAndLargeVocabularies) {
  const Pair& p = GetParam();
  for (const char* vocab : {"40", "4000"}) {
    const Certificate c = tests::certificate_of(
        tests::small_plan({{"parallel.tensor.mode", p.base.mode},
                           {"parallel.tensor.size", p.ranks},
                           {"parallel.tensor.depth", p.base.depth},
                           {"parallel.layers", text("[{ from = 1, to = 1, mode = \"", p.layer.mode,
                                                    "\", depth = ", p.layer.depth, " }]")},
                           {"model.hidden", "16"},
                           {"model.heads", "8"},
                           {"model.sequence", "16"},
                           {"model.vocab", vocab}}));
    EXPECT_EQ(c.verdict, "equal") << vocab << " rows, " << c.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(All, LayerPairs, testing::ValuesIn(pairs()), [](const auto& info) {
  return text(info.param.base.name, "_with_", info.param.layer.name, "_on_", info.param.ranks);
});

}  // namespace
}  // namespace kuafu
