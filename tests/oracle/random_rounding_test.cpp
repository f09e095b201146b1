// SPDX-License-Identifier: Apache-2.0
#include "kuafu/oracle/random_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "kuafu/oracle/layers.h"

namespace kuafu::oracle {
namespace {

constexpr double kUnit = 0x1p-24;

double largest(const Tensor& t) { return t.abs().max().item<double>(); }

Tensor line(double from, double to) { return at::linspace(from, to, 1000, at::kDouble); }

TEST(RandomRounding, MovesResultsByUpToItsUnitAndEndsWithItsScope) {
  const Tensor x = line(1, 2), y = line(3, 4), exact = x * y;
  Tensor moved;
  {
    const RandomRounding at_random(kUnit, 1);
    moved = x * y;
  }
  const double far = largest(moved / exact - 1);
  EXPECT_GT(far, 0.9 * kUnit);
  EXPECT_LT(far, 1.001 * kUnit);
  EXPECT_TRUE(at::equal(x * y, exact));
}

// A comparison that rounding may turn is turned by draws of either side; half precision has none.
TEST(RandomRounding, MovesAllUpAllDownByOperationOrByElement) {
  const Tensor x = at::linspace(1, 2, 100'000, at::kDouble), y = x + 2, exact = x * y;
  const auto moves = [&](uint64_t seed, double unit, int operations) {
    std::vector<Tensor> all;
    {
      const RandomRounding at_random(unit, seed);
      for (int i = 0; i < operations; ++i) all.push_back(x * y);
    }
    for (Tensor& t : all) t = (t / exact - 1) / unit;
    return all;
  };
  const auto mean = [](const Tensor& t) { return t.mean().item<double>(); };
  EXPECT_NEAR(mean(moves(0, kUnit, 1)[0]), 0.5, 0.02);
  EXPECT_NEAR(mean(moves(1, kUnit, 1)[0]), -0.5, 0.02);
  int ups = 0;
  for (const Tensor& t : moves(2, kUnit, 64)) {
    EXPECT_NEAR(std::abs(mean(t)), 0.5, 0.02);
    ups += mean(t) > 0 ? 1 : 0;
  }
  EXPECT_GT(ups, 16);
  EXPECT_LT(ups, 48);
  for (const Tensor& t : {moves(3, kUnit, 1)[0], moves(0, 0x1p-8, 1)[0]}) {
    EXPECT_NEAR(mean(t), 0, 0.02);
    EXPECT_NEAR(mean(t.square()), 1. / 3, 0.02);
    EXPECT_LT(t.min().item<double>(), -0.99);
  }
}

TEST(RandomRounding, LeavesViewsAndCopiesAndWhatIsNoFraction) {
  const Tensor x = line(1, 2), counts = at::arange(10), kept = x.add(0);
  {
    const RandomRounding at_random(kUnit, 1);
    const Tensor view = x.view({10, 100}).transpose(0, 1), copy = x.clone(), more = counts + 1;
    EXPECT_TRUE(more.equal(at::arange(1, 11)));
    EXPECT_TRUE(copy.equal(kept));
  }
  EXPECT_TRUE(at::equal(x, kept));
}

TEST(RandomRounding, IsTheSameForASeed) {
  const Tensor x = line(1, 2);
  const auto once = [&](uint64_t seed) {
    const RandomRounding at_random(kUnit, seed);
    return x * 3;
  };
  EXPECT_TRUE(at::equal(once(1), once(1)));
  EXPECT_FALSE(at::equal(once(1), once(2)));
}

// Rows of one token are equal, and so are their errors, which add up.
TEST(RandomRounding, MovesEqualElementsOfAResultAlike) {
  const at::Tensor x = at::arange(1, 9, at::kDouble).repeat({3, 1});
  const RandomRounding at_random(kUnit, 1);
  const at::Tensor y = x * 3, again = x * 3;
  EXPECT_TRUE(at::equal(y.select(0, 0), y.select(0, 2)));
  EXPECT_FALSE(at::equal(y, again));
  const at::Tensor xi = (y.select(0, 0) / (3 * at::arange(1, 9, at::kDouble)) - 1) / kUnit;
  EXPECT_GT((xi.max() - xi.min()).item<double>(), 0.5);
}

TEST(RandomRounding, OfHalfPrecisionIsOfItsUnit) {
  const Tensor x = line(1, 2).to(at::kBFloat16);
  const Tensor exact = x.to(at::kDouble) * 3;
  Tensor moved;
  {
    const RandomRounding at_random(kUnit, 1);
    moved = x * 3;
  }
  EXPECT_GT(largest(moved.to(at::kDouble) / exact - 1), 0x1p-8);  // rounded, and moved besides
}

/// The gradient of cross entropy in its logits, by a row that is sure of its target.
Tensor gradient_of_a_sure_row(double certainty) {
  Tensor logits = at::zeros({1, 8}, at::kDouble);
  logits.select(1, 3).fill_(certainty);
  logits.requires_grad_();
  const Tensor loss = cross_entropy(logits, at::full({1}, 3, at::kLong), 1);
  return torch::autograd::grad({loss}, {logits})[0].detach();
}

// p - y: both are rounded, also where nothing is left of them.
TEST(RandomRounding, MovesTermsBeforeTheyCancel) {
  EXPECT_LT(largest(gradient_of_a_sure_row(60)), 1e-15);
  const RandomRounding at_random(kUnit, 1);
  const double moved = largest(gradient_of_a_sure_row(60));
  EXPECT_GT(moved, 0.01 * kUnit);
  EXPECT_LT(moved, 10 * kUnit);
}

TEST(Softmax, IsWhatATenSays) {
  const Tensor x = line(-30, 30).view({10, 100});
  EXPECT_LT(largest(softmax(x) - at::softmax(x, -1)), 4 * 0x1p-52);
  EXPECT_LT(largest(log_softmax(x) - at::log_softmax(x, -1)), 64 * 0x1p-52);
}

}  // namespace
}  // namespace kuafu::oracle
