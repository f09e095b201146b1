// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "kuafu/tensor/tensor.h"

namespace kuafu::testing {

constexpr double kEps = 0x1.0p-52;
/// Of f64 sums of `length` terms near one.
constexpr double tolerance(int64_t length) { return 8 * kEps * static_cast<double>(length); }

/// Values in [-1, 1) as a function of the index and `salt`, rounded to the type asked for.
inline Tensor closed_form(at::IntArrayRef sizes, int64_t salt, at::ScalarType type = at::kDouble) {
  int64_t count = 1;
  for (const int64_t n : sizes) count *= n;
  const Tensor i = at::arange(count, at::kLong) + 1;
  const Tensor mixed = (i * (7919 + 2 * salt) + salt * 104729).remainder(2003);
  return (mixed.to(at::kDouble) / 1001.5 - 1).view(sizes).to(type);
}

/// Small whole numbers: sums of them are exact in every type and order.
inline Tensor whole_numbers(at::IntArrayRef sizes, int64_t salt,
                            at::ScalarType type = at::kDouble) {
  return (closed_form(sizes, salt) * 7).round().to(type);
}

/// max |a - b| <= tolerance, and the same sizes. Equal infinities are no distance apart.
inline void expect_close(const Tensor& a, const Tensor& b, double tolerance,
                         const std::string& what = "") {
  ASSERT_TRUE(a.defined() && b.defined()) << what;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  if (a.numel() == 0) return;
  const Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  const Tensor distance = (wide_a - wide_b).abs().masked_fill(wide_a.eq(wide_b), 0);
  const double error = distance.max().item<double>();
  EXPECT_LE(error, tolerance) << what;
}

}  // namespace kuafu::testing
