// SPDX-License-Identifier: Apache-2.0
#include "kuafu/dataset/permutation.h"

#include <algorithm>
#include <bit>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

constexpr uint64_t kRounds = 8;

int half_bits_of(int64_t size) {
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  return std::max(1, (bits + 1) / 2);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t site)
    : size_(size), random_(seed, site), half_bits_(size > 0 ? half_bits_of(size) : 1) {
  KUAFU_CHECK(size > 0, "a permutation of ", size, " positions");
}

int64_t Permutation::operator()(int64_t position) const {
  KUAFU_CHECK(position >= 0 && position < size_, "position ", position, " of ", size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto x = static_cast<uint64_t>(position);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (random_.bits((round << 32) | right) & mask);
      left = right;
      right = mixed;
    }
    x = (left << half_bits_) | right;
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

}  // namespace kuafu
