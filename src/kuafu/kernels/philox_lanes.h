// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "kuafu/kernels/loops.h"

// Random bits a block of counters at a time. Internal to the kernels.

namespace kuafu::kernels {

/// Philox4x32-10 of kLanes consecutive counters: word w of counter j in words[w][j].
using Words = std::array<std::array<uint32_t, kLanes>, 4>;

/// 64-bit lanes whose upper halves are zero: what the wide multiply reads and writes.
typedef uint64_t Wide __attribute__((vector_size(8 * kLanes)));

inline __attribute__((always_inline)) void philox_lanes(uint64_t first, uint64_t seed,
                                                        uint64_t site, Words& words) {
  constexpr uint64_t kLow = 0xffffffff;
  Wide c0, c1, c2, c3;
  for (int j = 0; j < kLanes; ++j) {
    const uint64_t counter = first + static_cast<uint64_t>(j);
    c0[j] = counter & kLow;
    c1[j] = counter >> 32;
    c2[j] = site & kLow;
    c3[j] = site >> 32;
  }
  uint64_t k0 = seed & kLow, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const Wide p0 = (c0 & kLow) * uint64_t{0xD2511F53}, p1 = (c2 & kLow) * uint64_t{0xCD9E8D57};
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1 & kLow;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0 & kLow;
    k0 = (k0 + 0x9E3779B9) & kLow;
    k1 = (k1 + 0xBB67AE85) & kLow;
  }
  for (int j = 0; j < kLanes; ++j) {
    words[0][j] = static_cast<uint32_t>(c0[j]);
    words[1][j] = static_cast<uint32_t>(c1[j]);
    words[2][j] = static_cast<uint32_t>(c2[j]);
    words[3][j] = static_cast<uint32_t>(c3[j]);
  }
}

/// 53 bits as a double in [0, 1), as CounterRandom makes it.
inline double unit(uint32_t a, uint32_t b) {
  const auto bits = static_cast<int64_t>(((static_cast<uint64_t>(a) << 32) | b) >> 11);
  return static_cast<double>(bits) * 0x1.0p-53;
}

}  // namespace kuafu::kernels
