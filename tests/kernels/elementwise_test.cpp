// SPDX-License-Identifier: Apache-2.0
//
// Activations, dropout and rotary positions against their formulas in a wider type.
#include <numbers>

#include "kuafu/kernels/kernels.h"
#include "tests/kernels/wide.h"

namespace kuafu {
namespace {

using test::is_near;
using test::spread;
using test::Wide;

/// Every magnitude of f32 from the least normal one, both signs, and a fine grid where activations bend.
std::vector<float> arguments() {
  std::vector<float> all = spread<float>(4000, 1, -126, 127);
  for (int i = -24000; i <= 24000; ++i) all.push_back(static_cast<float>(i) * 0x1.0p-11F);
  all.insert(all.end(), {0.0F, -0.0F, 1e-45F, -1e-40F, 3e38F, -3e38F});
  return all;
}

/// Roundings of 1 / (1 + e^-t): t is rounded, and e^-t has a relative error of t's absolute one.
double roundings_of(double t) { return 8 + 4 * std::min(std::abs(t), 88.0); }

// An activation that is 0 to all digits of f32 (10 and more below 0) may be a number below 1e-36.
constexpr double kNothing = 1e-36;

TEST(GeluRange, IsTheTanhFormAtEveryMagnitude) {
  const std::vector<float> x = arguments(), dy = spread<float>(int64_t(x.size()), 2, -20, 20);
  std::vector<float> y(x.size()), dx(x.size());
  kernels::gelu(x.data(), y.data(), int64_t(x.size()));
  kernels::gelu_backward(dy.data(), x.data(), dx.data(), int64_t(x.size()));
  const double root = std::sqrt(2 / std::numbers::pi);
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], t = 2 * root * (v + 0.044715 * v * v * v);
    const double s = 1 / (1 + std::exp(-t)), rest = 1 / (1 + std::exp(t));
    ASSERT_TRUE(is_near(y[i], v * s, std::abs(v * s) + kNothing / 1e-7, roundings_of(t))) << v;
    // Above 20 the second term is less than 1e-200, and its factors overflow.
    const double bend = std::abs(v) > 20 ? 0 : v * s * rest * 2 * root * (1 + 3 * 0.044715 * v * v);
    ASSERT_TRUE(is_near(dx[i], dy[i] * (s + bend),
                        std::abs(dy[i]) * (s + std::abs(bend) + kNothing / 1e-7), roundings_of(t)))
        << v;
  }
}

TEST(GeluExactRange, IsTheErrorFunctionsAtEveryMagnitude) {
  const std::vector<float> x = arguments(), dy = spread<float>(int64_t(x.size()), 2, -20, 20);
  std::vector<float> y(x.size()), dx(x.size());
  kernels::gelu_exact(x.data(), y.data(), int64_t(x.size()));
  kernels::gelu_exact_backward(dy.data(), x.data(), dx.data(), int64_t(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], t = v * v / 2, p = std::erfc(-v / std::numbers::sqrt2) / 2;
    ASSERT_TRUE(is_near(y[i], v * p, std::abs(v * p) + kNothing / 1e-7, roundings_of(t))) << v;
    const double bend = std::exp(-t) / std::sqrt(2 * std::numbers::pi) * v;
    ASSERT_TRUE(is_near(dx[i], dy[i] * (p + bend),
                        std::abs(dy[i]) * (p + std::abs(bend) + kNothing / 1e-7), roundings_of(t)))
        << v;
  }
}

TEST(SwigluRange, IsSiluTimesItsPairAtEveryMagnitude) {
  const std::vector<float> g = arguments(), u = spread<float>(int64_t(g.size()), 3, -30, 0),
                           dy = spread<float>(int64_t(g.size()), 4, -20, 20);
  std::vector<float> x, y(g.size()), dx(2 * g.size());
  for (size_t i = 0; i < g.size(); ++i) x.insert(x.end(), {g[i], u[i]});
  kernels::swiglu(x.data(), y.data(), int64_t(g.size()));
  kernels::swiglu_backward(dy.data(), x.data(), dx.data(), int64_t(g.size()));
  for (size_t i = 0; i < g.size(); ++i) {
    const double t = g[i], s = 1 / (1 + std::exp(-t)), rest = 1 / (1 + std::exp(t));
    const double silu = t * s, bend = std::abs(t) > 700 ? 0 : t * s * rest;
    // From 64 below 0 on, silu is less than 1e-26 and held at what it is there.
    const double edge = t < -63 ? 64 * std::exp(-63.0) / 1e-6 : 0;
    ASSERT_TRUE(
        is_near(y[i], silu * u[i], (std::abs(silu) + edge) * std::abs(u[i]), roundings_of(t)))
        << t;
    ASSERT_TRUE(is_near(dx[2 * i], dy[i] * u[i] * (s + bend),
                        std::abs(double(dy[i]) * u[i]) * (s + std::abs(bend) + edge),
                        roundings_of(t)))
        << t;
    const double size = std::abs(dy[i]) * (std::abs(silu) + edge);
    if (size > 1e38) continue;  // no f32
    ASSERT_TRUE(is_near(dx[2 * i + 1], dy[i] * silu, size, roundings_of(t))) << t;
  }
}

template <class T>
class Elementwise : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Elementwise, Types);

TYPED_TEST(Elementwise, DropoutKeepsByTheWordOfItsElementAndScalesForEveryP) {
  using T = TypeParam;
  const int64_t count = 515;
  std::vector<T> x = spread<T>(count, 5, -100, 100), y(x.size());
  for (const double p : {0.0, 1e-9, 1e-4, 0.1, 0.5, 0.9, 0.9999}) {
    const auto threshold = static_cast<uint32_t>(p * 0x1.0p32);
    const auto scale = static_cast<T>(1 / (1 - p));
    for (const uint64_t first : {uint64_t{0}, uint64_t{7}, (uint64_t{1} << 34) - 100}) {
      kernels::dropout(x.data(), y.data(), count, first, scale, {3, 5, threshold});
      for (uint64_t i = 0; i < uint64_t(count); ++i) {
        const uint64_t block = (first + i) / 4;
        const auto words = philox4x32(
            {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 5, 0}, {3, 0});
        const bool stays = words[(first + i) % 4] >= threshold;
        ASSERT_EQ(y[i], stays ? x[i] * scale : T{0}) << p << " element " << first + i;
      }
    }
  }
}

TEST(RopeTableRange, HasTheAnglesOfPositionsUpToAMillion) {
  std::vector<int64_t> positions = {0, 1, 63, 64, 999'999, 1'000'000};
  for (int64_t p = 5; p < 1'000'000; p = p * 3 + 1) positions.push_back(p);
  for (const double base : {500.0, 1e4, 5e5}) {
    for (const int64_t half : {1, 3, 32, 64}) {
      const auto size = positions.size() * static_cast<size_t>(half);
      std::vector<double> c(size), s(size);
      kernels::rope_table(positions.data(), int64_t(positions.size()), half, base, c.data(),
                          s.data());
      for (size_t i = 0; i < size; ++i) {
        const auto d = static_cast<long double>(i % static_cast<size_t>(half));
        const auto p = static_cast<long double>(positions[i / static_cast<size_t>(half)]);
        const long double angle = p * std::pow(static_cast<long double>(base), -d / half);
        // Frequency and angle are rounded; sums of products of sines.
        ASSERT_TRUE(is_near(c[i], std::cos(angle), 1 + angle, 4)) << double(angle);
        ASSERT_TRUE(is_near(s[i], std::sin(angle), 1 + angle, 4)) << double(angle);
      }
    }
  }
}

TYPED_TEST(Elementwise, RopeTurnsPairsOfEveryMagnitude) {
  using T = TypeParam;
  const int64_t batch = 2, heads = 3, sequence = 17, half = 5, dim = 2 * half;
  const int64_t count = batch * heads * sequence * dim;
  const std::vector<T> x = spread<T>(count, 6, -60, 60);
  std::vector<T> y(x.size()), c, s;
  for (int64_t i = 0; i < sequence * half; ++i) {
    c.push_back(static_cast<T>(std::cos(0.7 * double(i))));
    s.push_back(static_cast<T>(std::sin(0.7 * double(i))));
  }
  for (const T sign : {T{1}, T{-1}}) {
    kernels::rope({batch, heads, sequence, dim},
                  kernels::Rope<T>{{x.data(), heads * sequence * dim, sequence * dim, dim},
                                   {y.data(), heads * sequence * dim, sequence * dim, dim},
                                   c.data(),
                                   s.data(),
                                   sign});
    for (int64_t i = 0; i < count; ++i) {
      const int64_t d = i % dim % half, row = i - i % dim;
      const auto at = static_cast<size_t>(i / dim % sequence * half + d);
      const Wide<T> a = x[size_t(row + d)], b = x[size_t(row + d + half)];
      const Wide<T> sine = Wide<T>(sign) * s[at], cosine = c[at];
      const bool is_first = i % dim < half;
      const Wide<T> expected = is_first ? a * cosine - b * sine : b * cosine + a * sine;
      const Wide<T> size = is_first ? std::abs(a * cosine) + std::abs(b * sine)
                                    : std::abs(b * cosine) + std::abs(a * sine);
      ASSERT_TRUE(is_near(y[size_t(i)], expected, size, 3)) << i;
    }
  }
}

}  // namespace
}  // namespace kuafu
