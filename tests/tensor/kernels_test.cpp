// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/kernels.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kuafu
