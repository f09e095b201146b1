// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/xxh64.h"

#include <bit>
#include <cstdio>
#include <cstring>

namespace kuafu {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                   kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63,
                   kPrime5 = 0x27D4EB2F165667C5;

template <class Word>
Word read(const uint8_t* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

uint64_t round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round(0, lane)) * kPrime1 + kPrime4; }

/// What remains after the last whole stripe, and the mixing of the end.
uint64_t finish(uint64_t hash, const uint8_t* at, size_t left) {
  for (; left >= 8; left -= 8, at += 8) {
    hash = std::rotl(hash ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    hash = std::rotl(hash ^ read<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    left -= 4;
    at += 4;
  }
  for (; left > 0; --left, ++at) hash = std::rotl(hash ^ *at * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t xxh64(std::span<const uint8_t> bytes) {
  constexpr size_t kStripe = 32;
  const uint8_t* at = bytes.data();
  size_t left = bytes.size();
  uint64_t hash = kPrime5;
  if (left >= kStripe) {
    // Locals, not an array: they stay in registers.
    uint64_t a = kPrime1 + kPrime2, b = kPrime2, c = 0, d = 0 - kPrime1;
    for (; left >= kStripe; left -= kStripe, at += kStripe) {
      a = round(a, read<uint64_t>(at));
      b = round(b, read<uint64_t>(at + 8));
      c = round(c, read<uint64_t>(at + 16));
      d = round(d, read<uint64_t>(at + 24));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    for (const uint64_t lane : {a, b, c, d}) hash = merge(hash, lane);
  }
  return finish(hash + bytes.size(), at, left);
}

std::string hex_digits(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

std::string hash_digits(std::string_view bytes) {
  return hex_digits(xxh64({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
}

}  // namespace kuafu
