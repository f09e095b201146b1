// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

/// Logits without equal ones, in no order.
std::vector<double> some_logits(size_t n) {
  std::vector<double> logits;
  for (size_t i = 0; i < n; ++i) logits.push_back(3 * std::sin(static_cast<double>(i * i) + 0.4));
  return logits;
}

std::vector<double> softmax(const std::vector<double>& logits, double temperature) {
  std::vector<double> p;
  double sum = 0;
  for (const double l : logits) {
    p.push_back(std::exp(l / temperature));
    sum += p.back();
  }
  for (double& x : p) x /= sum;
  return p;
}

/// By the definitions: a token stays where fewer than k are likelier; and where those that are
/// likelier do not reach top_p yet.
std::vector<double> naive(const std::vector<double>& logits, const Sampling& how) {
  const auto cut = [](std::vector<double> p, const auto& stays) {
    const std::vector<double> all = p;
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      if (all[i] == 0 || !stays(all, all[i])) p[i] = 0;
      sum += p[i];
    }
    for (double& x : p) x /= sum;
    return p;
  };
  std::vector<double> p = softmax(logits, how.temperature);
  if (how.top_k > 0) {
    p = cut(p, [&](const std::vector<double>& all, double own) {
      return std::count_if(all.begin(), all.end(), [&](double x) { return x > own; }) < how.top_k;
    });
  }
  return cut(p, [&](const std::vector<double>& all, double own) {
    double likelier = 0;
    for (const double x : all) likelier += x > own ? x : 0;
    return likelier < how.top_p;
  });
}

TEST(Sampling, KeepsWhatTheDefinitionsKeep) {
  for (const size_t n : {1, 2, 37, 259}) {
    const std::vector<double> logits = some_logits(n);
    for (const double temperature : {0.3, 1.0, 2.5}) {
      for (const int64_t top_k : {0, 1, 3, 36, 1000}) {
        for (const double top_p : {1e-9, 0.3, 0.9, 0.9999, 1.0}) {
          const Sampling how{.temperature = temperature, .top_k = top_k, .top_p = top_p};
          const std::vector<double> expected = naive(logits, how);
          std::vector<double> found(n);
          for (const Candidate& c : candidates(logits, how)) {
            found[static_cast<size_t>(c.token)] = c.probability;
          }
          // n terms of a sum, a few operations an element.
          const double limit = 8 * static_cast<double>(n) * std::numeric_limits<double>::epsilon();
          for (size_t i = 0; i < n; ++i) ASSERT_NEAR(found[i], expected[i], limit) << i;
        }
      }
    }
  }
}

TEST(Sampling, OfEqualLogitsTakesTheLowerToken) {
  const std::vector<double> logits = {1, 5, 5, 2, 5};
  EXPECT_EQ(next_token(logits, {}, 0, 0), 1);
  const auto left = candidates(logits, {.temperature = 1, .top_k = 2});
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].token, 1);
  EXPECT_EQ(left[1].token, 2);
}

TEST(Sampling, SurvivesLogitsOfAnySize) {
  const std::vector<double> logits = {-1e300, 1e300, 900};
  EXPECT_EQ(next_token(logits, {.temperature = 1e-300}, 0, 0), 1);
  EXPECT_EQ(candidates(logits, {.temperature = 1, .top_p = 0.5}).size(), 1U);
}

// Pearson's statistic of n draws from k classes has mean k - 1 and variance 2 (k - 1): it is within 6
// standard deviations but for a chance far below 1e-4. The seed is fixed.
TEST(Sampling, DrawsByProbability) {
  constexpr int64_t kDraws = 20000;
  const std::vector<double> logits = some_logits(11);
  const Sampling how{.temperature = 1.3, .top_k = 7, .top_p = 0.97, .seed = 5};
  const auto all = candidates(logits, how);
  std::vector<double> seen(logits.size());
  for (int64_t i = 0; i < kDraws; ++i) {
    ++seen[static_cast<size_t>(next_token(logits, how, i / 100, i % 100))];
  }
  double statistic = 0, total = 0;
  for (const Candidate& c : all) {
    const double expected = c.probability * kDraws, found = seen[static_cast<size_t>(c.token)];
    statistic += (found - expected) * (found - expected) / expected;
    total += found;
  }
  EXPECT_EQ(total, kDraws);  // nothing that was cut off
  const auto degrees = static_cast<double>(all.size() - 1);
  EXPECT_NEAR(statistic, degrees, 6 * std::sqrt(2 * degrees));
}

TEST(Sampling, FollowsFromSeedPromptAndPosition) {
  const std::vector<double> logits = some_logits(37);
  const auto row = [&](uint64_t seed, int64_t prompt) {
    std::vector<int64_t> drawn;
    for (int64_t at = 0; at < 20; ++at) {
      drawn.push_back(next_token(logits, {.temperature = 2, .seed = seed}, prompt, at));
    }
    return drawn;
  };
  EXPECT_EQ(row(1, 0), row(1, 0));
  EXPECT_EQ((std::set{row(1, 0), row(1, 1), row(2, 0), row(2, 1)}).size(), 4U);
}

TEST(Sampling, RefusesValuesThatAreNone) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Sampling& how : {Sampling{.temperature = -0.1},
                              {.temperature = nan},
                              {.top_k = -1},
                              {.top_p = 0},
                              {.top_p = 1.1},
                              {.top_p = nan}}) {
    EXPECT_THROW(check_sampling(how), ConfigError);
  }
  check_sampling({.temperature = 0.7, .top_k = 40, .top_p = 0.9});
}

}  // namespace
}  // namespace kuafu
