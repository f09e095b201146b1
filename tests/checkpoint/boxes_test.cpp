// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/boxes.h"

#include <gtest/gtest.h>

#include <random>

namespace kuafu {
namespace {

TEST(BoxesOfRun, OfAMatrixAreItsRows) {
  const std::vector<Slice> expected = {{{0, 2}, {1, 1}}, {{1, 0}, {2, 3}}, {{3, 0}, {1, 1}}};
  EXPECT_EQ(boxes_of_run({4, 3}, 2, 10), expected);
  EXPECT_EQ(boxes_of_run({4, 3}, 0, 12), (std::vector<Slice>{{{0, 0}, {4, 3}}}));
  EXPECT_EQ(boxes_of_run({4, 3}, 4, 5), (std::vector<Slice>{{{1, 1}, {1, 1}}}));
  EXPECT_TRUE(boxes_of_run({4, 3}, 7, 7).empty());
  EXPECT_TRUE(boxes_of_run({0, 3}, 0, 0).empty());
  EXPECT_EQ(boxes_of_run({}, 0, 1), (std::vector<Slice>{{{}, {}}}));
}

TEST(BoxesOfRun, AreFewAndHoldEachElementInOrder) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    Shape extent;
    for (size_t d = 0, dims = 1 + random() % 4; d < dims; ++d) {
      extent.push_back(1 + static_cast<int64_t>(random() % 5));
    }
    const int64_t n = volume(extent);
    const auto end = static_cast<int64_t>(random() % static_cast<uint64_t>(n + 1));
    const int64_t begin =
        end == 0 ? 0 : static_cast<int64_t>(random() % static_cast<uint64_t>(end));
    const std::vector<Slice> boxes = boxes_of_run(extent, begin, end);
    EXPECT_LE(boxes.size(), 2 * extent.size() - 1);
    // Element i of the run is i: copied box by box out of the whole tensor they come in order.
    std::vector<int64_t> whole(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) whole[static_cast<size_t>(i)] = i;
    std::vector<int64_t> run;
    for (const Slice& box : boxes) {
      std::vector<int64_t> part(static_cast<size_t>(volume(box.extent)), -1);
      copy_overlap({Shape(extent.size(), 0), extent}, whole.data(), box, part.data(), 8);
      run.insert(run.end(), part.begin(), part.end());
    }
    ASSERT_EQ(static_cast<int64_t>(run.size()), end - begin);
    for (size_t i = 0; i < run.size(); ++i) EXPECT_EQ(run[i], begin + static_cast<int64_t>(i));
  }
}

}  // namespace
}  // namespace kuafu
