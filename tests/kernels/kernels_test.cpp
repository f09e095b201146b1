// SPDX-License-Identifier: Apache-2.0
#include "kuafu/kernels/kernels.h"
#include "kuafu/kernels/updates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "kuafu/base/philox.h"

namespace kuafu {
namespace {

TEST(Normals, AreThoseOfTheCounterBitForBit) {
  for (const uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 7}) {
    for (const int64_t count : {0, 1, 15, 16, 17, 100}) {
      std::vector<double> out(static_cast<size_t>(count));
      kernels::normals(42, 0x123456789abcdef0, first, count, out.data());
      const CounterRandom random(42, 0x123456789abcdef0);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], random.normal(first + i));
    }
  }
}

// Three million elements and more: some of them lie too near to a rounding boundary for the series.
TEST(Normals, ScaledToF32AreRoundedLikeThoseOfTheCounterBitForBit) {
  constexpr int64_t kCount = 1 << 20;
  std::vector<double> exact(kCount + 5);
  std::vector<float> out(kCount + 5);
  for (const double std : {0.02, 1.0, 0.0, 3e-40}) {
    for (const uint64_t first : {uint64_t{3}, (uint64_t{1} << 32) - 100}) {
      kernels::normals(7, 123456789, first, kCount + 5, exact.data());
      kernels::scaled_normals(7, 123456789, first, kCount + 5, std, out.data());
      int64_t wrong = 0;
      for (size_t i = 0; i < out.size(); ++i) wrong += out[i] != static_cast<float>(std * exact[i]);
      EXPECT_EQ(wrong, 0) << std << " from " << first;
    }
  }
  for (const int64_t count : {0, 1, 15, 17}) {
    std::vector<float> some(20, -7);
    kernels::scaled_normals(42, 9, 5, count, 1.0, some.data());
    const CounterRandom random(42, 9);
    for (int64_t i = 0; i < 20; ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(some[at], i < count ? static_cast<float>(random.normal(5 + at)) : -7);
    }
  }
}

TEST(Normals, HaveTheMomentsOfANormal) {
  constexpr int64_t kCount = 1 << 18;
  std::vector<double> out(kCount);
  kernels::normals(1, 2, 0, kCount, out.data());
  double sum = 0, squares = 0;
  for (const double x : out) {
    sum += x;
    squares += x * x;
  }
  // Standard errors are 1/512 and sqrt(2)/512; five of them.
  EXPECT_NEAR(sum / kCount, 0, 5.0 / 512);
  EXPECT_NEAR(squares / kCount, 1, 5 * 1.42 / 512);
}

TEST(DropoutKernel, ReadsWordOfBlockByElement) {
  const kernels::DropoutStream s{9, 77, 1u << 31};
  for (const uint64_t first : {uint64_t{0}, uint64_t{3}, uint64_t{1021}}) {
    const std::vector<float> x(150, 1);
    std::vector<float> y(150);
    kernels::dropout(x.data(), y.data(), 150, first, 2, s);
    for (uint64_t i = 0; i < 150; ++i) {
      const uint64_t e = first + i;
      const auto words = philox4x32({static_cast<uint32_t>(e / 4), 0, 77, 0}, {9, 0});
      EXPECT_EQ(y[i], words[e % 4] >= s.threshold ? 2 : 0) << e;
    }
  }
}

TEST(SumOfSquares, IsExactOnWholeNumbersOfAnyCount) {
  for (const int64_t count : {0, 1, 15, 16, 33, 1000}) {
    std::vector<float> x(static_cast<size_t>(count));
    double expected = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 13) - 6;
      expected += x[i] * x[i];
    }
    EXPECT_EQ(kernels::sum_of_squares(x.data(), count), expected);
  }
}

/// gelu and its gradient by their definition, in f64.
struct Gelu {
  double value, slope;
};
Gelu gelu_of(double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  const double tanh = std::tanh(root * (x + 0.044715 * x * x * x));
  const double inner = root * (1 + 3 * 0.044715 * x * x);
  return {0.5 * x * (1 + tanh), 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * inner};
}

// Of any length and wherever it begins: an update asks for memory ahead and works in pieces, of which
// an element's bits must know nothing.
TEST(AdamKernel, GivesAnElementTheSameBitsWhereverItStands) {
  constexpr int64_t kMost = 131;
  const kernels::AdamWFactors f{.beta1 = 0.9,
                                .beta2 = 0.99,
                                .epsilon = 1e-8,
                                .rate = 0.01,
                                .spread = 1.5,
                                .grad = 0.5,
                                .coupled = 0.1,
                                .keep = 0.99};
  const auto filled = [](float scale) {
    std::vector<float> all(kMost + 4);
    for (size_t i = 0; i < all.size(); ++i) all[i] = scale * static_cast<float>(i % 37 + 1);
    return all;
  };
  const std::vector<float> grad = filled(0.03F);
  std::vector<float> wanted_w = filled(0.1F), wanted_m = filled(0.01F), wanted_v = filled(0.2F);
  for (size_t i = 0; i < wanted_w.size(); ++i) {
    kernels::adam(
        kernels::Decay::kOfWeight,
        kernels::AdamWData<float, float>{&wanted_w[i], &grad[i], &wanted_m[i], &wanted_v[i], 1}, f);
  }
  for (int64_t count = 0; count <= kMost; ++count) {
    for (int64_t first = 0; first < 4; ++first) {
      std::vector<float> w = filled(0.1F), m = filled(0.01F), v = filled(0.2F);
      kernels::adam(kernels::Decay::kOfWeight,
                    kernels::AdamWData<float, float>{w.data() + first, grad.data() + first,
                                                     m.data() + first, v.data() + first, count},
                    f);
      for (int64_t i = first; i < first + count; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(w[at], wanted_w[at]) << count << " from " << first << ", element " << i;
        ASSERT_EQ(m[at], wanted_m[at]);
        ASSERT_EQ(v[at], wanted_v[at]);
      }
      EXPECT_EQ(w[static_cast<size_t>(first + count)],
                filled(0.1F)[static_cast<size_t>(first + count)]);
    }
  }
}

TEST(SumOfSquares, IsThatOfInterleavedPartialSumsOfAnyCount) {
  std::vector<float> x(200);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.1F * static_cast<float>(i % 41) - 1.7F;
  for (int64_t count = 0; count < 190; ++count) {
    for (int64_t first = 0; first < 4; ++first) {
      double partial[16] = {}, total = 0;
      int64_t i = 0;
      const auto square_at = [&](int64_t at) {
        const double value = x[static_cast<size_t>(first + at)];
        return value * value;
      };
      for (; i + 16 <= count; i += 16) {
        for (int j = 0; j < 16; ++j) partial[j] += square_at(i + j);
      }
      for (; i < count; ++i) total += square_at(i);
      for (const double p : partial) total += p;
      ASSERT_EQ(kernels::sum_of_squares(x.data() + first, count), total)
          << count << " from " << first;
    }
  }
}

TEST(GeluKernel, IsWithinAFewRoundingsOfTheDefinition) {
  std::vector<float> x, ones;
  for (int i = -12000; i <= 12000; ++i) x.push_back(static_cast<float>(i) * 1e-3F);
  x.insert(x.end(), {-1e38F, -100, -0.0F, 1e-30F, 100, 1e38F});
  ones.assign(x.size(), 1);
  const auto count = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size()), dx(x.size());
  kernels::gelu(x.data(), y.data(), count);
  kernels::gelu_backward(ones.data(), x.data(), dx.data(), count);
  // A sigmoid of two roundings each in exponential, sum and quotient, times x or with slopes up
  // to 2.
  const double eps = std::numeric_limits<float>::epsilon();
  for (size_t i = 0; i < x.size(); ++i) {
    const Gelu expected = gelu_of(x[i]);
    const double size = std::max(1.0, std::abs(static_cast<double>(x[i])));
    EXPECT_NEAR(y[i] / size, expected.value / size, 4 * eps) << x[i];
    if (std::abs(x[i]) > 1e6) continue;  // the definition's own cube overflows
    EXPECT_NEAR(dx[i], expected.slope, 8 * eps) << x[i];
  }
}

TEST(GeluKernel, PassesNanOn) {
  const float x = std::numeric_limits<float>::quiet_NaN();
  for (const auto kernel : {kernels::gelu, kernels::gelu_exact}) {
    float y = 0;
    kernel(&x, &y, 1);
    EXPECT_TRUE(std::isnan(y));
  }
}

TEST(SwigluKernel, IsWithinAFewRoundingsOfTheDefinition) {
  std::vector<float> x, dy;
  for (int i = -9000; i <= 9000; ++i) {
    x.push_back(static_cast<float>(i) * 1e-2F);
    x.push_back(static_cast<float>(i % 7) - 3.5F);
  }
  x.insert(x.end(), {-1e30F, 1, -0.0F, 1, 1e30F, 1});
  const size_t pairs = x.size() / 2;
  dy.assign(pairs, 1);
  std::vector<float> y(pairs), dx(x.size());
  kernels::swiglu(x.data(), y.data(), static_cast<int64_t>(pairs));
  kernels::swiglu_backward(dy.data(), x.data(), dx.data(), static_cast<int64_t>(pairs));
  const double eps = std::numeric_limits<float>::epsilon();
  for (size_t i = 0; i < pairs; ++i) {
    const double g = x[2 * i], u = x[2 * i + 1], s = 1 / (1 + std::exp(-g));
    const double size = std::max(1.0, std::abs(g));
    EXPECT_NEAR(y[i] / size, g * s * u / size, 4 * 4 * eps) << g;
    EXPECT_NEAR(dx[2 * i], u * s * (1 + g * (1 - s)), 8 * 4 * eps) << g;
    EXPECT_NEAR(dx[2 * i + 1] / size, g * s / size, 4 * eps) << g;
  }
}

TEST(RopeTable, DependsOnThePositionAloneAndIsExactToAFewUnits) {
  const std::vector<int64_t> positions = {0, 1, 63, 64, 65, 4095, 100000, 65, 1};
  const int64_t half = 5, count = static_cast<int64_t>(positions.size());
  const auto size = static_cast<size_t>(count * half);
  std::vector<double> c(size), s(size), c1(5), s1(5);
  kernels::rope_table(positions.data(), count, half, 10000, c.data(), s.data());
  for (size_t i = 0; i < positions.size(); ++i) {
    kernels::rope_table(&positions[i], 1, half, 10000, c1.data(), s1.data());
    for (size_t d = 0; d < 5; ++d) {
      EXPECT_EQ(c[5 * i + d], c1[d]);
      EXPECT_EQ(s[5 * i + d], s1[d]);
      const double angle = static_cast<double>(positions[i]) * std::pow(10000, -double(d) / 5);
      // The angle itself is rounded, here as there.
      const double bound = (4 + 2 * angle) * std::numeric_limits<double>::epsilon();
      EXPECT_NEAR(c1[d], std::cos(angle), bound) << positions[i];
      EXPECT_NEAR(s1[d], std::sin(angle), bound) << positions[i];
    }
  }
}

}  // namespace
}  // namespace kuafu
