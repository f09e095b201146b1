// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/crc32.h"

#include <array>
#include <cstdio>

namespace kuafu {
namespace {

/// Remainders of all bytes by the polynomial of IEEE 802.3, lowest bit first.
constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0xEDB88320u : 0u);
    table[byte] = rest;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32(std::string_view bytes) {
  uint32_t rest = 0xFFFFFFFFu;
  for (const char c : bytes) {
    rest = (rest >> 8) ^ kTable[(rest ^ static_cast<unsigned char>(c)) & 0xFFu];
  }
  return ~rest;
}

std::string crc32_digits(std::string_view bytes) {
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", crc32(bytes));
  return digits;
}

}  // namespace kuafu
