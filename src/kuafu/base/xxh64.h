// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace kuafu {

/// XXH64 with seed 0: tells bytes apart at the speed of memory; no protection against intent.
///                                  [Collet, xxHash fast digest algorithm, version 0.1.1]
uint64_t xxh64(std::span<const uint8_t> bytes);

/// 16 hex digits.
std::string hex_digits(uint64_t value);

}  // namespace kuafu
