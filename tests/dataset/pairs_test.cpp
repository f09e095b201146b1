// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/dataset/synthetic.h"

namespace kuafu {
namespace {

constexpr int64_t kVocab = 50, kSequence = 24, kInner = kSequence - kSpecialTokens;
constexpr int64_t kFirst = kVocab - 3, kBetween = kVocab - 2, kMask = kVocab - 1;

SyntheticDataset::Options inner_options(uint64_t seed) {
  return {kVocab - kSpecialTokens, kInner, seed};
}

PairDataset make(uint64_t seed = 1) {
  ModelPlan model;
  model.kind = "bert";
  model.vocab = kVocab;
  model.sequence = kSequence;
  return {std::make_unique<SyntheticDataset>(inner_options(seed)), model, last_ids(kVocab), seed};
}

/// Sample i of the tokens as they were before any was hidden.
std::vector<int64_t> restored(const Tokens& t, int64_t i) {
  std::vector<int64_t> ids(t.inputs.begin() + i * kSequence,
                           t.inputs.begin() + (i + 1) * kSequence);
  for (int64_t s = 0; s < kSequence; ++s) {
    const int64_t target = t.targets[static_cast<size_t>(i * kSequence + s)];
    if (target >= 0) ids[static_cast<size_t>(s)] = target;
  }
  return ids;
}

TEST(PairDataset, HidesFifteenPercentOfEverySample) {
  EXPECT_EQ(masked_positions(128), 19);
  EXPECT_EQ(masked_positions(5), 1);
  const Tokens t = make().train(0, 64);
  ASSERT_TRUE(t.is_pair);
  EXPECT_EQ(t.predictions, 4);  // round(3.6)
  for (int64_t i = 0; i < 64; ++i) {
    int64_t hidden = 0;
    for (int64_t s = 0; s < kSequence; ++s) {
      const int64_t target = t.targets[static_cast<size_t>(i * kSequence + s)];
      hidden += target >= 0 ? 1 : 0;
      EXPECT_LT(target, kVocab - kSpecialTokens);  // special tokens are never hidden
    }
    EXPECT_EQ(hidden, t.predictions) << i;
  }
}

TEST(PairDataset, PairsHalvesOfOneWindowOrOfTwo) {
  const Tokens t = make().train(10, 200);
  const SyntheticDataset inner(inner_options(1));
  int64_t random = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const std::vector<int64_t> ids = restored(t, i), own = inner.train(10 + i, 1).inputs;
    EXPECT_EQ(ids.front(), kFirst);
    EXPECT_EQ(ids[kInner / 2 + 1], kBetween);
    EXPECT_EQ(ids.back(), kBetween);
    EXPECT_TRUE(std::equal(own.begin(), own.begin() + kInner / 2, ids.begin() + 1));
    const bool follows =
        std::equal(own.begin() + kInner / 2, own.end(), ids.begin() + kInner / 2 + 2);
    const int64_t label = t.labels[static_cast<size_t>(i)];
    EXPECT_EQ(follows, label == 0) << i;
    random += label;
  }
  EXPECT_NEAR(static_cast<double>(random), 100, 3 * std::sqrt(50));  // three standard deviations
}

TEST(PairDataset, MarksTheSecondPart) {
  const Tokens t = make().train(0, 1);
  for (int64_t s = 0; s < kSequence; ++s) {
    EXPECT_EQ(t.segments[static_cast<size_t>(s)], s < kInner / 2 + 2 ? 0 : 1);
  }
}

// 80 % become the mask, 10 % another token, 10 % stay; a random token is the old one in 1 of 47.
TEST(PairDataset, ReplacesEightyTenTen) {
  const Tokens t = make().train(0, 2000);
  int64_t masks = 0, kept = 0, all = 0;
  for (size_t i = 0; i < t.targets.size(); ++i) {
    if (t.targets[i] < 0) continue;
    ++all;
    masks += t.inputs[i] == kMask ? 1 : 0;
    kept += t.inputs[i] == t.targets[i] ? 1 : 0;
  }
  ASSERT_EQ(all, 8000);
  const double n = 8000;
  EXPECT_NEAR(static_cast<double>(masks) / n, 0.8, 3 * std::sqrt(0.16 / n));
  EXPECT_NEAR(static_cast<double>(kept) / n, 0.1 + 0.1 / 47, 3 * std::sqrt(0.09 / n));
}

TEST(PairDataset, SamplesAreAFunctionOfTheirNumber) {
  const PairDataset data = make();
  const Tokens all = data.train(0, 6), last = data.train(4, 2);
  EXPECT_TRUE(
      std::equal(last.inputs.begin(), last.inputs.end(), all.inputs.begin() + 4 * kSequence));
  EXPECT_TRUE(
      std::equal(last.targets.begin(), last.targets.end(), all.targets.begin() + 4 * kSequence));
  EXPECT_EQ(data.train(0, 6), make().train(0, 6));
  EXPECT_NE(data.train(0, 6), make(2).train(0, 6));
  EXPECT_EQ(data.validation(0, 6), make(2).validation(0, 6));
}

TEST(PairDataset, NeedsRoomForAPair) {
  ModelPlan model;
  model.kind = "bert";
  model.sequence = 4;
  EXPECT_THROW(
      PairDataset(std::make_unique<SyntheticDataset>(inner_options(1)), model, last_ids(kVocab), 1),
      ConfigError);
}

}  // namespace
}  // namespace kuafu
