// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kuafu::formula {

/// A word of a formula.
struct Token {
  enum class Kind : uint8_t { kNumber, kText, kName, kQuotedName, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string word;
  size_t letter = 0;
};

/// The words of a formula; the last one is its end. Throws as fail() does.
std::vector<Token> tokens_of(const std::string& text);

/// Throws ConfigError: formula, letter and what is wrong there.
[[noreturn]] void fail(const std::string& text, size_t letter, const std::string& what);

}  // namespace kuafu::formula
