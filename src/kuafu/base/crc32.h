// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kuafu {

/// CRC-32 of IEEE 802.3: that of zlib, gzip and Python's zlib.crc32, so that any tool can check a
/// line or a file. It sees every burst of up to 32 bits, every flip of one, two or three bits in
/// less than 11 KiB, and of random changes all but one in 2^32. One table of 1 KiB, a byte at a
/// time (0.3 to 0.4 GB/s): for records, not for tensors, which have a faster sum of their own.
uint32_t crc32(std::string_view bytes);

/// The same as 8 hex digits.
std::string crc32_digits(std::string_view bytes);

}  // namespace kuafu
