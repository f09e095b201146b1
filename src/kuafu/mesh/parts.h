// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace kuafu {

/// A stretch of an extent.
struct Part {
  int64_t offset = 0, extent = 0;
  bool operator==(const Part&) const = default;
};

/// The i-th of n parts of an extent that n need not divide: the first extent % n hold one more.
/// So does the axis "sequence" cut a dim that no other axis shards (my_slice); all others must
/// divide.
///
///   nth_part(7, 3, i)    0 1 2 | 3 4 | 5 6
constexpr Part nth_part(int64_t extent, int64_t n, int64_t i) {
  const int64_t base = extent / n, more = extent % n;
  return {i * base + std::min(i, more), base + (i < more ? 1 : 0)};
}

}  // namespace kuafu
