// SPDX-License-Identifier: Apache-2.0
#include "kuafu/mesh/layout.h"

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"
#include "kuafu/mesh/parts.h"

namespace kuafu {
namespace {

const std::vector<Axis> kTesseract = {{"data", 2}, {"dep", 2}, {"row", 3}, {"col", 3}};

// What the schemes of parallel/tensor declare, by hand from their papers.
const Layout kSerial = Layout::replicated(3);
const Layout kInner1d{{{}, {}, {"tensor"}}};
const Layout kOuterSp{{{}, {"tensor"}, {}}};
const Layout kGrid{{{"dep", "row"}, {}, {"col"}}};

TEST(Layout, PrintsAxesAfterTheDim) {
  EXPECT_EQ(to_string(kGrid, "BSH"), "(B/dep.row, S, H/col)");
  EXPECT_EQ(to_string(kSerial, "BSH"), "(B, S, H)");
  EXPECT_EQ(to_string(Axes{}), "-");
  EXPECT_EQ(to_string(Shape{2, 3}), "(2, 3)");
  EXPECT_EQ(kGrid.all_axes(), (Axes{"dep", "row", "col"}));
}

TEST(Layout, ShardsAreTheGlobalExtentOverTheRanks) {
  const Mesh mesh(kTesseract, 0);
  EXPECT_EQ(local_shape(kGrid, {12, 5, 9}, mesh), (Shape{2, 5, 3}));
  EXPECT_EQ(local_shape(kSerial, {12, 5, 9}, mesh), (Shape{12, 5, 9}));
  EXPECT_EQ(local_shape(kInner1d, {12, 5, 9}, mesh), (Shape{12, 5, 9}));  // no such axis here
  EXPECT_EQ(local_shape(kGrid, {0, 5, 9}, mesh), (Shape{0, 5, 3}));
}

TEST(Layout, MajorAxisMovesInLargerSteps) {
  const Mesh mesh(kTesseract, 1 * 18 + 1 * 9 + 2 * 3 + 1);  // data 1, dep 1, row 2, col 1
  const Slice slice = my_slice(kGrid, {12, 5, 9}, mesh);
  EXPECT_EQ(slice.offset, (Shape{(1 * 3 + 2) * 2, 0, 3}));
  EXPECT_EQ(slice.extent, (Shape{2, 5, 3}));
}

// Every element of the global tensor lies in exactly as many shards as there are replicas.
TEST(Layout, SlicesTileTheTensorOncePerReplica) {
  const Shape global = {12, 2, 9};
  std::vector<int> holders(static_cast<size_t>(12 * 2 * 9), 0);
  for (int rank = 0; rank < 36; ++rank) {
    const Slice s = my_slice(kGrid, global, Mesh(kTesseract, rank));
    for (int64_t b = 0; b < s.extent[0]; ++b) {
      for (int64_t t = 0; t < s.extent[1]; ++t) {
        for (int64_t h = 0; h < s.extent[2]; ++h) {
          const int64_t at = ((s.offset[0] + b) * 2 + s.offset[1] + t) * 9 + s.offset[2] + h;
          ++holders[static_cast<size_t>(at)];
        }
      }
    }
  }
  for (const int n : holders) EXPECT_EQ(n, 2);  // replicas: the data axis
}

TEST(Layout, IndivisibleExtentNamesDimExtentAndAxes) {
  const Mesh mesh(kTesseract, 0);
  try {
    local_shape(kGrid, {13, 5, 9}, mesh, "activations");
    FAIL() << "13 samples fit on 6 ranks";
  } catch (const NotDivisible& e) {
    EXPECT_EQ(e.dim, "0");
    EXPECT_EQ(e.extent, 13);
    EXPECT_EQ(e.axes, "dep.row");
    const std::string what = e.what();
    EXPECT_NE(what.find("activations"), std::string::npos) << what;
    EXPECT_NE(what.find("nearest that do: 12 and 18"), std::string::npos) << what;
  }
}

TEST(Layout, NearestExtentOfASmallDimIsTheRankCount) {
  try {
    local_shape(kGrid, {12, 5, 2}, Mesh(kTesseract, 0));
    FAIL() << "2 columns fit on 3 ranks";
  } catch (const NotDivisible& e) {
    EXPECT_EQ(e.dim, "2");
    EXPECT_NE(std::string(e.what()).find("nearest that do: 3"), std::string::npos) << e.what();
  }
}

TEST(Layout, OfAnotherNumberOfDimsIsABug) {
  EXPECT_THROW(local_shape(kGrid, {12, 5}, Mesh(kTesseract, 0)), InternalError);
  EXPECT_THROW(to_string(kGrid, "BS"), InternalError);
}

TEST(Layout, PaddedIsTheNextMultiple) {
  const Mesh mesh(kTesseract, 0);
  EXPECT_EQ(padded(257, {"row"}, mesh), 258);
  EXPECT_EQ(padded(258, {"row"}, mesh), 258);
  EXPECT_EQ(padded(257, {"dep", "row"}, mesh), 258);
  EXPECT_EQ(padded(1, {"dep", "row"}, mesh), 6);
  EXPECT_EQ(padded(257, {}, mesh), 257);
  EXPECT_EQ(padded(0, {"row"}, mesh), 0);
}

struct GradCase {
  const char* what;
  Layout activation;
  Layout param;
  Axes expected;
};

// A gradient is partial over the axes that shard the tokens the parameter meets, unless they shard
// the parameter too.
TEST(Layout, GradAxesAreTheTokenAxesThatDoNotShardTheParameter) {
  const std::vector<GradCase> cases = {
      {"serial weight", kSerial, Layout::replicated(2), {}},
      {"serial norm", kSerial, Layout::replicated(1), {}},
      {"1d expand weight meets the whole stream", kSerial, {{{}, {"tensor"}}}, {}},
      {"1d expand bias meets the inner stream", kInner1d, {{{"tensor"}}}, {}},
      {"1d contract weight", kInner1d, {{{"tensor"}, {}}}, {}},
      {"1d contract bias is whole on every rank", kSerial, Layout::replicated(1), {}},
      {"1d norm", kSerial, Layout::replicated(1), {}},
      {"1d-sp expand weight", kOuterSp, {{{}, {"tensor"}}}, {}},
      {"1d-sp contract bias sees part of the sequence",
       kOuterSp,
       Layout::replicated(1),
       {"tensor"}},
      {"1d-sp norm sees part of the sequence", kOuterSp, Layout::replicated(1), {"tensor"}},
      {"1d-sp positions", kOuterSp, Layout::replicated(2), {"tensor"}},
      {"1d-sp expand bias", kInner1d, {{{"tensor"}}}, {}},
      {"2.5d weight: layers share it", kGrid, {{{"row"}, {"col"}}}, {"dep"}},
      {"2.5d bias: rows hold other samples", kGrid, {{{"col"}}}, {"dep", "row"}},
      {"2.5d norm", kGrid, {{{"col"}}}, {"dep", "row"}},
      {"2.5d positions", kGrid, {{{}, {"col"}}}, {"dep", "row"}},
      {"sequence axis in front",
       {{{}, {"sequence", "tensor"}, {}}},
       {{{"tensor"}, {}}},
       {"sequence"}},
      {"an axis twice counts once", {{{"a"}, {"a", "b"}, {}}}, Layout::replicated(1), {"a", "b"}},
  };
  for (const GradCase& c : cases) EXPECT_EQ(grad_axes(c.activation, c.param), c.expected) << c.what;
}

TEST(NthPart, CutsAnExtentWithTheFirstPartsOneLonger) {
  EXPECT_EQ(nth_part(7, 3, 0), (Part{0, 3}));
  EXPECT_EQ(nth_part(7, 3, 1), (Part{3, 2}));
  EXPECT_EQ(nth_part(7, 3, 2), (Part{5, 2}));
  EXPECT_EQ(nth_part(2, 3, 2), (Part{2, 0}));
}

TEST(Layout, SequenceAloneCutsUnevenly) {
  int64_t next = 0;
  for (int rank = 0; rank < 5; ++rank) {
    const Mesh mesh({{"sequence", 5}, {"tensor", 1}}, rank);
    const Slice s = my_slice({{{}, {"sequence", "tensor"}}}, {4, 13}, mesh);
    EXPECT_EQ(s.offset, (Shape{0, next}));
    EXPECT_EQ(s.extent, (Shape{4, rank < 3 ? 3 : 2}));
    next += s.extent[1];
  }
  EXPECT_EQ(next, 13);
}

TEST(Layout, SequenceBesideAnotherAxisMustDivide) {
  const Mesh mesh({{"sequence", 2}, {"tensor", 2}}, 0);
  const Layout layout{{{"sequence", "tensor"}}};
  EXPECT_THROW(local_shape(layout, {6}, mesh), NotDivisible);
  EXPECT_EQ(local_shape(layout, {8}, mesh), (Shape{2}));
}

}  // namespace
}  // namespace kuafu
