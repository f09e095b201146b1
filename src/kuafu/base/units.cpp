// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu {
namespace {

constexpr std::array<std::pair<std::string_view, int64_t>, 9> kByteUnits = {
    {{"b", 1},
     {"kb", 1000},
     {"mb", 1000 * 1000},
     {"gb", 1000 * 1000 * 1000},
     {"tb", 1000LL * 1000 * 1000 * 1000},
     {"kib", 1LL << 10},
     {"mib", 1LL << 20},
     {"gib", 1LL << 30},
     {"tib", 1LL << 40}}};

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

/// Bytes of one unit; 0 where the name is no unit.
int64_t unit_size(std::string_view name) {
  std::string folded(name);
  for (char& c : folded) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (folded.empty()) return 1;
  for (const auto& [unit, size] : kByteUnits) {
    if (unit == folded) return size;
  }
  return 0;
}

/// Up to three significant digits, no trailing zeros.
std::string three_digits(double value) {
  char out[32];
  std::snprintf(out, sizeof(out), "%.3g", value);
  // 999.6 rounds to 1e+03 here.
  if (std::string_view(out).find('e') != std::string_view::npos) {
    std::snprintf(out, sizeof(out), "%.0f", value);
  }
  return out;
}

}  // namespace

int64_t parse_bytes(std::string_view size) {
  const std::string_view trimmed_size = trimmed(size);
  const char* const end = trimmed_size.data() + trimmed_size.size();
  double count = 0;
  const auto [rest, error] = std::from_chars(trimmed_size.data(), end, count);
  const int64_t unit =
      error == std::errc() ? unit_size(trimmed({rest, static_cast<size_t>(end - rest)})) : 0;
  KUAFU_REQUIRE(
      unit > 0 && std::isfinite(count) && count >= 0, in_quotes(size),
      " is no size; write a number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, such "
      "as \"6 GB\" or \"512 MiB\"");
  // Whole numbers stay exact beyond 2^53.
  int64_t whole = 0;
  const auto [whole_end, whole_error] = std::from_chars(trimmed_size.data(), end, whole);
  int64_t bytes = 0;
  bool fits = true;
  if (whole_error == std::errc() && whole_end == rest) {
    fits = !__builtin_mul_overflow(whole, unit, &bytes);
  } else {
    const double product = std::floor(count * static_cast<double>(unit));
    fits = product < 0x1p63;
    if (fits) bytes = static_cast<int64_t>(product);
  }
  KUAFU_REQUIRE(fits, in_quotes(size), " is too large; the largest size is 2^63 - 1 bytes");
  return bytes;
}

std::string print_bytes(int64_t bytes) {
  constexpr std::array<std::string_view, 7> kNames = {"B",   "KiB", "MiB", "GiB",
                                                      "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t power = 0;
  while (std::abs(value) >= 1023.5 && power + 1 < kNames.size()) {
    value /= 1024;
    ++power;
  }
  return text(three_digits(value), " ", kNames[power]);
}

std::string print_count(double count, std::string_view unit) {
  constexpr std::array<std::string_view, 7> kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  size_t power = 0;
  while (std::abs(count) >= 999.5 && power + 1 < kPrefixes.size()) {
    count /= 1000;
    ++power;
  }
  const std::string_view prefix = kPrefixes[power];
  return text(three_digits(count), prefix.empty() && unit.empty() ? "" : " ", prefix, unit);
}

std::string print_seconds(double seconds) {
  if (!std::isfinite(seconds)) return text(seconds, " s");
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 999.5e-9) return three_digits(seconds * 1e9) + " ns";
  if (size < 999.5e-6) return three_digits(seconds * 1e6) + " us";
  if (size < 999.5e-3) return three_digits(seconds * 1e3) + " ms";
  if (size < 59.95) return three_digits(seconds) + " s";
  const auto whole = static_cast<int64_t>(std::llround(size));
  const std::string sign = seconds < 0 ? "-" : "";
  if (whole < 3600) return text(sign, whole / 60, " min ", whole % 60, " s");
  return text(sign, whole / 3600, " h ", whole % 3600 / 60, " min");
}

}  // namespace kuafu
