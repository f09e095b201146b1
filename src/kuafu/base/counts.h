// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kuafu/base/errors.h"

// Counts that say so where they grow beyond their type, for a number that went around is worse than
// none.
namespace kuafu {

[[noreturn]] inline void throw_too_large(const char* what) {
  throw Refused(text(what,
                     " of this plan are beyond what is counted (2^63, of all ranks 2^64); "
                     "give it fewer samples a step (train.batch), or a smaller model"));
}

/// The product of factors that are not negative. Throws Refused where it is too large; `what` names
/// the count: "model FLOPs".
constexpr int64_t product_of_counts(std::initializer_list<int64_t> factors, const char* what) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) throw_too_large(what);
  }
  return product;
}

/// Adds to a count. Throws Refused where the sum is too large.
template <class Sum>
constexpr void add_to_count(Sum& sum, Sum more, const char* what) {
  if (__builtin_add_overflow(sum, more, &sum)) throw_too_large(what);
}

}  // namespace kuafu
