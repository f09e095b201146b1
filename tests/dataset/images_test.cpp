// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/images.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

ModelPlan model_of(int64_t image, int64_t patch) {
  ModelPlan m;
  m.kind = "vit";
  m.image = image;
  m.patch = patch;
  m.classes = 3;
  m.sequence = (image / patch) * (image / patch) + 1;
  return m;
}

TEST(ImageDataset, HoldsPatchesAndLabels) {
  const Tokens t = ImageDataset(model_of(8, 4), 1).train(0, 5);
  EXPECT_EQ(t.patches, 4);
  EXPECT_EQ(t.pixels, 48);
  EXPECT_EQ(t.images.size(), 5u * 4 * 48);
  EXPECT_EQ(t.predictions, 1);
  ASSERT_EQ(t.labels.size(), 5u);
  for (const int64_t label : t.labels) EXPECT_TRUE(label >= 0 && label < 3);
}

// The same image cut in patches of 8 (one), 4 and 2: pixel (row, column, channel) is found again.
TEST(ImageDataset, PatchesCutOneImage) {
  const Tokens whole = ImageDataset(model_of(8, 8), 7).train(3, 2);
  for (const int64_t patch : {4, 2}) {
    const Tokens cut = ImageDataset(model_of(8, patch), 7).train(3, 2);
    EXPECT_EQ(cut.labels, whole.labels);
    const int64_t side = 8 / patch;
    for (int64_t i = 0; i < 2 * 8 * 8 * 3; ++i) {
      const int64_t sample = i / 192, row = i % 192 / 24, column = i % 24 / 3, channel = i % 3;
      const int64_t at = row / patch * side + column / patch;
      const int64_t inside = (row % patch * patch + column % patch) * 3 + channel;
      EXPECT_EQ(cut.images[static_cast<size_t>(sample * 192 + at * cut.pixels + inside)],
                whole.images[static_cast<size_t>(i)]);
    }
  }
}

// Images of one class share their pattern: the mean of n has variance 1 + 1/n, not 2/n.
TEST(ImageDataset, ClassesHavePatterns) {
  const Tokens t = ImageDataset(model_of(8, 4), 1).train(0, 300);
  const int64_t size = t.patches * t.pixels;
  std::map<int64_t, std::vector<double>> sums;
  std::map<int64_t, double> counts;
  for (int64_t i = 0; i < 300; ++i) {
    const int64_t label = t.labels[static_cast<size_t>(i)];
    auto& sum =
        sums.try_emplace(label, std::vector<double>(static_cast<size_t>(size))).first->second;
    for (int64_t p = 0; p < size; ++p) {
      sum[static_cast<size_t>(p)] +=
          static_cast<double>(t.images[static_cast<size_t>(i * size + p)]);
    }
    counts[label] += 1;
  }
  ASSERT_EQ(counts.size(), 3u);
  for (const auto& [label, sum] : sums) {
    double variance = 0;
    for (const double s : sum) variance += s * s / (counts[label] * counts[label]);
    // Of 192 squares of a normal number: a standard deviation of sqrt(2 / 192) = 0.10.
    EXPECT_NEAR(variance / static_cast<double>(size), 1 + 1 / counts[label], 0.4) << label;
  }
}

TEST(ImageDataset, SamplesAreAFunctionOfTheirNumber) {
  const ImageDataset data(model_of(8, 4), 1), other(model_of(8, 4), 2);
  const Tokens all = data.train(0, 4), last = data.train(3, 1);
  EXPECT_TRUE(std::equal(last.images.begin(), last.images.end(), all.images.begin() + 3 * 192));
  EXPECT_NE(all, other.train(0, 4));
  EXPECT_EQ(data.validation(0, 4), other.validation(0, 4));
}

TEST(ImageDataset, RefusesPatchesThatDoNotTile) {
  EXPECT_THROW(ImageDataset(model_of(9, 4), 1), ConfigError);
}

}  // namespace
}  // namespace kuafu
