// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

TEST(SyntheticDataset, TakesAnyVocabulary) {
  for (const int64_t vocab : {1, 2, 3, 50, 50257}) {
    const SyntheticDataset data({vocab, 16, 1});
    const Tokens tokens = data.train(0, 20);
    ASSERT_EQ(tokens.inputs.size(), 320u);
    for (const int64_t token : tokens.targets) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, vocab);
    }
  }
}

TEST(SyntheticDataset, EveryStepIsOneOfFourSuccessors) {
  const SyntheticDataset data({100, 8, 1});
  const Tokens tokens = data.train(0, 50);
  for (size_t i = 0; i < tokens.inputs.size(); ++i) {
    bool is_successor = false;
    for (int64_t k = 0; k < 4; ++k) {
      is_successor |= data.successor(tokens.inputs[i], k) == tokens.targets[i];
    }
    EXPECT_TRUE(is_successor);
    if (i % 8 != 0) {
      EXPECT_EQ(tokens.inputs[i], tokens.targets[i - 1]);
    }
  }
}

// The likeliest successor is taken with probability 0.7 (more where successors coincide), so always
// guessing it is right that often. Standard deviation of the share: sqrt(0.7 * 0.3 / n).
TEST(SyntheticDataset, CanBeLearned) {
  const SyntheticDataset data({1000, 50, 3});
  const Tokens tokens = data.train(0, 400);
  int64_t right = 0;
  for (size_t i = 0; i < tokens.inputs.size(); ++i) {
    right += data.successor(tokens.inputs[i], 0) == tokens.targets[i];
  }
  const auto n = static_cast<double>(tokens.inputs.size());
  EXPECT_GE(static_cast<double>(right) / n, 0.7 - 5 * std::sqrt(0.21 / n));
}

// Frequencies alone already beat a uniform guess: the first steps of a model lower its loss.
TEST(SyntheticDataset, PrefersSmallTokens) {
  const SyntheticDataset data({256, 64, 1});
  const Tokens tokens = data.train(0, 500);
  std::map<int64_t, double> counts;
  for (const int64_t token : tokens.targets) counts[token] += 1;
  const auto n = static_cast<double>(tokens.targets.size());
  double entropy = 0;
  for (const auto& [token, count] : counts) entropy -= count / n * std::log(count / n);
  EXPECT_LT(entropy, 0.9 * std::log(256.0));
}

TEST(SyntheticDataset, IsAFunctionOfSeedAndPosition) {
  const SyntheticDataset data({64, 10, 1}), same({64, 10, 1}), other({64, 10, 2});
  EXPECT_EQ(data.train(7, 3), same.train(7, 3));
  EXPECT_NE(data.train(7, 3), other.train(7, 3));
  EXPECT_NE(data.train(0, 3), data.train(3, 3));
  EXPECT_EQ(data.validation(0, 5), other.validation(0, 5));
  EXPECT_NE(data.validation(0, 5), data.train(0, 5));
}

TEST(SyntheticDataset, EndsOnlyWhereNumbersDo) {
  const SyntheticDataset data({64, 10, 1});
  const int64_t last = data.num_train_samples() - 1;
  EXPECT_EQ(data.train(last, 1).samples, 1);
  EXPECT_THROW(data.train(last, 2), InternalError);
}

}  // namespace
}  // namespace kuafu
