// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/regex_syntax.h"

#include <cctype>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu::tokenizer {
namespace {

// Insides of sets. White space is fixed, so that what is none can be spelled out too.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNoSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
/// What Oniguruma takes for a word character outside of sets only.
constexpr std::string_view kWordOutside = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

/// \b: between a word character and none.
std::string word_border() {
  const std::string word = text("[", kWord, kWordOutside, "]");
  return text("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))");
}

/// Walks over a pattern and writes the other one.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string translated() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        set();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        bounds();
      } else {
        out_ += c;
        ++at_;
      }
    }
    return out_;
  }

 private:
  char peek(size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw ConfigError(text("regular expression ", in_quotes(pattern_), ": ", what, " at byte ", at_,
                           " is not supported"));
  }

  void copy(size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  void write(std::string_view words, size_t read) {
    out_ += words;
    at_ += read;
  }

  void set_of(std::string_view open, std::string_view inside) {
    out_ += open;
    out_ += inside;
    write("]", 2);
  }

  /// \x, \u, \p and those that both read alike, inside of sets and outside; false: another one.
  bool common_escape() {
    const char c = peek(1);
    if (c == 'p' || c == 'P') {
      const size_t end = pattern_.find('}', at_);
      if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without {...}");
      copy(end + 1 - at_);
    } else if (c == 'u') {
      const std::string_view digits = pattern_.substr(at_ + 2, 4);
      bool is_hex = digits.size() == 4;
      for (const char d : digits) is_hex = is_hex && std::isxdigit(static_cast<unsigned char>(d));
      if (!is_hex) refuse("\\u without four digits");
      write(text("\\x{", digits, "}"), 6);
    } else if (c == 'x' || c == 'n' || c == 't' || c == 'r' || c == 'f' || c == 'a' || c == 'e') {
      copy(2);
    } else if (c == 'v') {
      write("\\x{B}", 2);
    } else if (c != '\0' && !std::isalnum(static_cast<unsigned char>(c))) {
      copy(2);  // the second may be the first byte of a character: the rest is copied as it comes
    } else {
      return false;
    }
    return true;
  }

  void escape() {
    if (common_escape()) return;
    switch (peek(1)) {
      case 's':
        return set_of("[", kSpace);
      case 'S':
        return set_of("[^", kSpace);
      case 'w':
        return set_of("[", text(kWord, kWordOutside));
      case 'W':
        return set_of("[^", text(kWord, kWordOutside));
      case 'd':
        return write("\\p{Nd}", 2);
      case 'D':
        return write("\\P{Nd}", 2);
      case 'A':
      case 'z':
        return copy(2);
      case 'b':
        return write(word_border(), 2);
      default:
        refuse(text("\\", peek(1)));
    }
  }

  void escape_in_set() {
    if (common_escape()) return;
    switch (peek(1)) {
      case 's':
        return write(kSpace, 2);
      case 'S':
        return write(kNoSpace, 2);
      case 'w':
        return write(kWord, 2);
      case 'd':
        return write("\\p{Nd}", 2);
      case 'D':
        return write("\\P{Nd}", 2);
      default:
        refuse(text("\\", peek(1), " in a set"));
    }
  }

  void set() {
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') refuse("an empty set");
    while (peek(0) != ']') {
      if (at_ >= pattern_.size()) refuse("a set without an end");
      if (peek(0) == '[') refuse("a set in a set");
      if (peek(0) == '&' && peek(1) == '&') refuse("&& in a set");
      if (peek(0) == '\\') {
        escape_in_set();
      } else {
        copy(1);
      }
    }
    copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    const std::string_view rest = pattern_.substr(at_);
    for (const std::string_view known :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"}) {
      if (rest.starts_with(known)) return copy(known.size());
    }
    refuse(rest.substr(0, 3));
  }

  /// {n}, {n,}, {n,m}, {,m}; what else begins with { is that character to both.
  void bounds() {
    size_t end = at_ + 1;
    const auto skip_digits = [&] {
      const size_t from = end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end])))
        ++end;
      return end > from;
    };
    const bool has_least = skip_digits();
    const bool has_comma = end < pattern_.size() && pattern_[end] == ',';
    if (has_comma) ++end;
    const bool has_most = has_comma && skip_digits();
    const bool is_closed = end < pattern_.size() && pattern_[end] == '}';
    if (!is_closed || (!has_least && !has_most)) return write("\\{", 1);
    const char next = end + 1 < pattern_.size() ? pattern_[end + 1] : '\0';
    if (next == '+' || (next == '?' && !has_comma)) refuse(text("}", next));
    if (has_least) return copy(end + 1 - at_);
    write(text("{0", pattern_.substr(at_ + 1, end - at_)), end + 1 - at_);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre_pattern(std::string_view pattern) { return Translator(pattern).translated(); }

}  // namespace kuafu::tokenizer
