// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <cctype>
#include <random>

namespace kuafu::fuzz {
namespace {

/// What a reader meets at the edges of its types.
const std::vector<std::string> kNumbers = {"0",
                                           "-0",
                                           "1",
                                           "-1",
                                           "2",
                                           "127",
                                           "255",
                                           "65536",
                                           "2147483647",
                                           "2147483648",
                                           "-2147483649",
                                           "4294967296",
                                           "4611686018427387904",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "-9223372036854775808",
                                           "18446744073709551615",
                                           "99999999999999999999",
                                           "1e999",
                                           "-1e308",
                                           "1e-320",
                                           "0.5",
                                           "1.0",
                                           "nan",
                                           "inf",
                                           "0x10",
                                           "1_000",
                                           "007",
                                           "true",
                                           "null",
                                           "\"7\"",
                                           "[]"};
const std::vector<std::string> kWords = {"../",
                                         "/",
                                         "..",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         "\"",
                                         "'",
                                         ",",
                                         ":",
                                         "=",
                                         "\n",
                                         "\r\n",
                                         "#",
                                         "\\",
                                         "\\u0000",
                                         "\\ud800",
                                         "\xff",
                                         "\xc3",
                                         "\xe2\x82\xac",
                                         std::string(1, '\0'),
                                         "{}",
                                         "[]",
                                         "\"\"",
                                         "$",
                                         ".",
                                         "[[",
                                         "]]",
                                         "=[",
                                         "-",
                                         " ",
                                         "0F0",
                                         "1B0",
                                         ",\"checksum\":\"00000000\"}"};

class Mutation {
 public:
  Mutation(const std::vector<std::string>& valid, uint64_t seed, uint64_t number)
      : valid_(valid), random_(seed * 0x9E3779B97F4A7C15u + number) {}

  std::string run() {
    std::string bytes = any(valid_);
    const size_t changes = below(2) == 0 ? 1 : 1 + below(4);
    for (size_t i = 0; i < changes; ++i) change(bytes);
    return bytes;
  }

 private:
  size_t below(size_t end) { return end == 0 ? 0 : static_cast<size_t>(random_() % end); }
  const std::string& any(const std::vector<std::string>& list) { return list[below(list.size())]; }
  /// Mostly short.
  size_t length(size_t most) { return std::min(most, 1 + below(size_t{1} << below(8))); }

  void change(std::string& bytes) {
    const size_t at = below(bytes.size() + 1);
    switch (below(14)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        return;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(256));
        return;
      case 2:
        bytes.insert(at, 1, static_cast<char>(below(256)));
        return;
      case 3:
        bytes.insert(at, any(kWords));
        return;
      case 4:
        bytes.erase(at, length(bytes.size() - at));
        return;
      case 5:
        bytes.insert(below(bytes.size() + 1), bytes.substr(at, length(bytes.size() - at)));
        return;
      case 6:
        if (below(3) == 0) bytes.resize(at);
        return;
      case 7:
      case 10:
      case 11:
        return replace_number(bytes, at);
      case 8:
      case 12:
        return swap_words(bytes);
      default:
        return splice(bytes, at);
    }
  }

  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  }
  /// The run of word characters at `at` or after it: begin and length.
  static std::pair<size_t, size_t> word_at(const std::string& bytes, size_t at) {
    while (at < bytes.size() && !is_word(bytes[at])) ++at;
    while (at > 0 && at <= bytes.size() && is_word(bytes[at - 1])) --at;
    size_t end = at;
    while (end < bytes.size() && is_word(bytes[end])) ++end;
    return {at, end - at};
  }

  void replace_number(std::string& bytes, size_t at) {
    const size_t digit = bytes.find_first_of("0123456789", at);
    if (digit == std::string::npos) return;
    const size_t end = std::min(bytes.find_first_not_of("0123456789", digit), bytes.size());
    bytes.replace(digit, end - digit, any(kNumbers));
  }

  void swap_words(std::string& bytes) {
    auto a = word_at(bytes, below(bytes.size())), b = word_at(bytes, below(bytes.size()));
    if (a.first > b.first) std::swap(a, b);
    if (a.first + a.second > b.first) return;
    const std::string first = bytes.substr(a.first, a.second);
    const std::string second = bytes.substr(b.first, b.second);
    bytes.replace(b.first, b.second, first);
    if (below(2) == 0) bytes.replace(a.first, a.second, second);
  }

  void splice(std::string& bytes, size_t at) {
    const std::string& other = any(valid_);
    const size_t from = below(other.size() + 1);
    if (below(2) == 0) {
      bytes = bytes.substr(0, at) + other.substr(from);
    } else {
      bytes.insert(at, other.substr(from, length(other.size() - from)));
    }
  }

  const std::vector<std::string>& valid_;
  std::mt19937_64 random_;
};

}  // namespace

std::string mutated(const std::vector<std::string>& valid, uint64_t seed, uint64_t number) {
  return Mutation(valid, seed, number).run();
}

}  // namespace kuafu::fuzz
