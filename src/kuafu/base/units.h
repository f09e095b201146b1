// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kuafu {

/// Bytes of "6 GB", "512 MiB", "1.5 GiB", "4096": powers of 1000 for kB, MB, GB, TB and of 1024 for
/// KiB, MiB, GiB, TiB, in any letter case; fractions are rounded down to a whole byte.
/// Throws ConfigError where the text is no size, is negative or exceeds 2^63 - 1.
int64_t parse_bytes(std::string_view size);

/// "512 MiB", "1.5 KiB", "12 B": three significant digits, powers of 1024.
std::string print_bytes(int64_t bytes);

/// "119 k", "1.54 G", "768"; with a unit "119 kFLOP", "768 FLOP": three significant digits, powers of
/// 1000.
std::string print_count(double count, std::string_view unit = "");

/// "13.2 ms", "1.5 us", "2 min 5 s": three significant digits up to a minute.
std::string print_seconds(double seconds);

}  // namespace kuafu
