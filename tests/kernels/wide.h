// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kuafu/base/philox.h"

// Loops against their formula in a wider type over the whole range of their arguments: f32 against
// f64, f64 against the processor's 80 bits.
namespace kuafu::test {

template <class T>
struct WideOf;
template <>
struct WideOf<float> {
  using type = double;
};
template <>
struct WideOf<double> {
  using type = long double;
};
template <class T>
using Wide = typename WideOf<T>::type;

template <class T>
constexpr auto kEpsilon = Wide<T>(std::numeric_limits<T>::epsilon());

/// Numbers of either sign whose exponents are spread evenly over 2^from .. 2^to; i of `salt` is one
/// number everywhere.
template <class T>
std::vector<T> spread(int64_t count, uint64_t salt, int from, int to) {
  const CounterRandom random(11, salt);
  std::vector<T> all;
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
    const double exponent = from + (to - from) * random.uniform(2 * i);
    const double sign = random.uniform(2 * i + 1) < 0.5 ? -1 : 1;
    all.push_back(static_cast<T>(sign * std::exp2(exponent)));
  }
  return all;
}

/// Whether `got` is `expected` to `roundings` roundings of terms whose magnitudes add up to `size`,
/// results below the type's least normal number apart. A factor of 1.0001 on a term of `size` itself
/// is seen where roundings are below 800 (f32).
template <class T>
testing::AssertionResult is_near(T got, Wide<T> expected, Wide<T> size, double roundings) {
  const Wide<T> least = std::numeric_limits<T>::min();
  const Wide<T> bound = Wide<T>(roundings) * kEpsilon<T> * (size + least);
  if (std::abs(Wide<T>(got) - expected) <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << got << " for " << double(expected) << ", bound " << double(bound);
}

}  // namespace kuafu::test
