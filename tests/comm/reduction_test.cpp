// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/reduction.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "tests/comm/values.h"

namespace kuafu {
namespace {

using conformance::kAllTypes;
using conformance::reduced;
using conformance::value;
using conformance::Values;

TEST(Halves, EveryF16AndBf16GoesThroughF32Unchanged) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    if (std::isnan(from_f16(h))) {
      EXPECT_TRUE(std::isnan(from_f16(to_f16(from_f16(h)))));
    } else {
      EXPECT_EQ(to_f16(from_f16(h)), h);
    }
    if (std::isnan(from_bf16(h))) {
      EXPECT_TRUE(std::isnan(from_bf16(to_bf16(from_bf16(h)))));
    } else {
      EXPECT_EQ(to_bf16(from_bf16(h)), h);
    }
  }
}

// Between two neighbours the nearer one wins, the middle goes to the even one.
TEST(Halves, RoundToNearestTiesToEven) {
  const auto check = [](auto to, auto from, uint16_t last) {
    for (uint16_t h = 0; h < last; ++h) {
      const float low = from(h), high = from(static_cast<uint16_t>(h + 1)),
                  middle = low / 2 + high / 2;
      const auto even = static_cast<uint16_t>(h % 2 == 0 ? h : h + 1);
      ASSERT_EQ(to(middle), even) << h;
      ASSERT_EQ(to(std::nextafter(middle, low)), h) << h;
      ASSERT_EQ(to(std::nextafter(middle, high)), h + 1) << h;
      ASSERT_EQ(to(-middle), even | 0x8000) << h;
    }
  };
  check(to_f16, from_f16, 0x7bff);  // up to the largest finite one
  check(to_bf16, from_bf16, 0x7f7f);
}

TEST(Halves, KeepInfinityAndOverflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_f16(to_f16(infinity)), infinity);
  EXPECT_EQ(from_f16(to_f16(-infinity)), -infinity);
  EXPECT_EQ(from_f16(to_f16(65519.0F)), 65504.0F);
  EXPECT_EQ(from_f16(to_f16(65520.0F)), infinity);
  EXPECT_EQ(from_bf16(to_bf16(std::numeric_limits<float>::max())), infinity);
}

TEST(Combine, MeetsTheClosedFormForAllTypesAndNumbersOfSources) {
  for (const DType t : kAllTypes) {
    for (const int n : {1, 2, 3, 4, 5, 8}) {
      for (const int64_t count : {0, 1, 7, 1024, 2500}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
          std::vector<Values> data(static_cast<size_t>(n), Values(t, count));
          std::vector<const void*> sources;
          for (int r = 0; r < n; ++r) {
            for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(r)].set(i, value(r, i));
            sources.push_back(data[static_cast<size_t>(r)].buffer().data);
          }
          const auto expected = [=](int64_t i) { return reduced(op, n, i); };
          Values apart(t, count);
          const std::array<void*, 1> one = {apart.buffer().data};
          combine(t, op, sources, one, count);
          expect_values(apart, expected, "into another array");
          std::vector<void*> targets;  // every source is overwritten with the result
          for (Values& v : data) targets.push_back(v.buffer().data);
          combine(t, op, sources, targets, count);
          for (const Values& v : data) expect_values(v, expected, "in place");
        }
      }
    }
  }
}

// 1 + 2^-9 + 2^-9 is 1 + 2^-8 in f32, which bf16 rounds to even: 1; bf16 after each step gives 1
// too, but 256 + 1 + 1 is 258 in f32 and 256 if every step is rounded.
TEST(Combine, AddsBf16InF32AndRoundsOnce) {
  std::array<uint16_t, 3> a = {to_bf16(256), to_bf16(1), to_bf16(1)};
  const std::array<const void*, 3> sources = {&a[0], &a[1], &a[2]};
  const std::array<void*, 1> targets = {&a[0]};
  combine(DType::kBF16, ReduceOp::kSum, sources, targets, 1);
  EXPECT_EQ(from_bf16(a[0]), 258.0F);
}

TEST(Combine, AddsFromLeftToRight) {
  std::array<float, 3> a = {1e8F, -1e8F, 1.0F};
  const std::array<const void*, 3> sources = {&a[0], &a[1], &a[2]};
  float sum = 0;
  const std::array<void*, 1> targets = {&sum};
  combine(DType::kF32, ReduceOp::kSum, sources, targets, 1);
  EXPECT_EQ(sum, 1.0F);
}

TEST(Combine, WrapsIntegers) {
  std::array<int32_t, 2> a = {std::numeric_limits<int32_t>::max(), 1};
  accumulate(DType::kI32, ReduceOp::kSum, &a[0], &a[1], 1);
  EXPECT_EQ(a[0], std::numeric_limits<int32_t>::min());
}

}  // namespace
}  // namespace kuafu
