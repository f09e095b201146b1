// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/philox.h"

#include <cmath>
#include <numbers>

namespace kuafu {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

constexpr uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

/// 53 bits of a block's first or second half as a double in [0, 1).
double to_unit(uint32_t a, uint32_t b) {
  return static_cast<double>(((static_cast<uint64_t>(a) << 32) | b) >> 11) * 0x1.0p-53;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMultiplier0) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(kMultiplier1) * c[2];
    c = {high(p1) ^ c[1] ^ k[0], low(p1), high(p0) ^ c[3] ^ k[1], low(p0)};
    k = {k[0] + kWeyl0, k[1] + kWeyl1};
  }
  return c;
}

CounterRandom::CounterRandom(uint64_t seed, uint64_t site)
    : key_{low(seed), high(seed)}, site_{low(site), high(site)} {}

uint64_t CounterRandom::bits(uint64_t index) const {
  const auto r = philox4x32({low(index), high(index), site_[0], site_[1]}, key_);
  return (static_cast<uint64_t>(r[0]) << 32) | r[1];
}

double CounterRandom::uniform(uint64_t index) const {
  const auto r = philox4x32({low(index), high(index), site_[0], site_[1]}, key_);
  return to_unit(r[0], r[1]);
}

double CounterRandom::normal(uint64_t index) const {
  const auto r = philox4x32({low(index), high(index), site_[0], site_[1]}, key_);
  const double u = 1.0 - to_unit(r[0], r[1]);  // in (0, 1]: the logarithm stays finite
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * to_unit(r[2], r[3]));
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace kuafu
