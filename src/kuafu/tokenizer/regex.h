// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/tokenizer/piece.h"

namespace kuafu::tokenizer {

/// A regular expression of a tokenizer file. They are written for Oniguruma with Ruby's syntax and
/// run by PCRE2 here: regex_syntax.h translates. One thread at a time.
class Regex {
 public:
  /// Throws ConfigError: why `pattern` is none, or is none of those that are understood.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// Matches, leftmost first, and what lies between them: the whole text. @pre `text` is UTF-8
  std::vector<Span> find(std::string_view text) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace kuafu::tokenizer
