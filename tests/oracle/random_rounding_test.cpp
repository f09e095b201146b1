// SPDX-License-Identifier: Apache-2.0
#include "kuafu/oracle/random_rounding.h"

#include <gtest/gtest.h>

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

// Up as often as down, in f64 that stands for f32 and in half precision: a comparison that rounding may turn is
// turned by every second draw.
TEST(RandomRounding, MovesUpAsOftenAsDown) {
  const Tensor x = at::linspace(1, 2, 100'000, at::kDouble), y = x + 2, exact = x * y;
  for (const double unit : {kUnit, 0x1p-8}) {
    Tensor moved;
    {
      const RandomRounding at_random(unit, 1);
      moved = x * y;
    }
    const Tensor xi = (moved / exact - 1) / unit;
    EXPECT_NEAR(xi.mean().item<double>(), 0, 0.02) << unit;
    EXPECT_NEAR(xi.square().mean().item<double>(), 1. / 3, 0.02) << unit;
    EXPECT_LT(xi.min().item<double>(), -0.99) << unit;
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
