// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kuafu {

/// XXH64 with seed 0: tells bytes apart at the speed of memory; no protection against intent.
///                                  [Collet, xxHash fast digest algorithm, version 0.1.1]
uint64_t xxh64(std::span<const uint8_t> bytes);

/// 16 hex digits.
std::string hex_digits(uint64_t value);

/// Those of the XXH64 of a text's bytes.
std::string hash_digits(std::string_view bytes);

}  // namespace kuafu
