// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kuafu {

/// Philox4x32-10: a keyed bijection from 128-bit counters to 128 random bits.
/// [Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011, section 3.3]
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Random numbers as a pure function of (seed, site, index): any rank computes any element.
class CounterRandom {
 public:
  CounterRandom(uint64_t seed, uint64_t site);

  /// Uniform in [0, 1) with 53 bits.
  double uniform(uint64_t index) const;
  /// Standard normal by Box-Muller from the one counter block of `index`.
  double normal(uint64_t index) const;
  /// 64 random bits.
  uint64_t bits(uint64_t index) const;

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 2> site_;
};

/// FNV-1a, 64 bits: turns a name into a site.
uint64_t hash_name(std::string_view name);

}  // namespace kuafu
