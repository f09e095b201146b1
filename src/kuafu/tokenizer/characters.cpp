// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/characters.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "kuafu/base/errors.h"
#include "kuafu/tokenizer/young_characters.h"

namespace kuafu::tokenizer {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_between(utf8proc_category_t value, utf8proc_category_t first, utf8proc_category_t last) {
  return value >= first && value <= last;
}

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

/// Letters by the property Alphabetic whose category is a symbol's: circled and squared ones.
bool is_symbol_letter(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

void append_form(std::string& out, std::string_view text, utf8proc_option_t options) {
  if (text.empty()) return;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, &std::free);
  KUAFU_REQUIRE(bytes >= 0, "a text of ", text.size(),
                " bytes has no normal form: ", utf8proc_errmsg(bytes));
  out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(bytes));
}

utf8proc_option_t options_of(NormalForm form) {
  const bool is_composed = form == NormalForm::kC || form == NormalForm::kKC;
  const bool is_compatible = form == NormalForm::kKC || form == NormalForm::kKD;
  int options = UTF8PROC_STABLE | (is_composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
  if (is_compatible) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

}  // namespace

char32_t char_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80) --at;
  return next_char(text, at);
}

void append_char(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

std::string to_utf8(char32_t c) {
  std::string out;
  append_char(out, c);
  return out;
}

size_t count_chars(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0u) != 0x80;
  return count;
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  return is_between(category(c), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return is_between(category(c), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c < 0x80) return is_letter(c) || is_number(c) || c == '_';
  const utf8proc_category_t kind = category(c);
  return is_between(kind, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_NL) ||  // L, M, Nd, Nl
         kind == UTF8PROC_CATEGORY_PC || is_symbol_letter(c) || c == 0x200C || c == 0x200D;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && !is_letter(c) && !is_number(c);
  constexpr char32_t kOnce[] = {0x166D, 0x111C9};  // were punctuation in the tables followed
  return (is_between(category(c), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO) &&
          !is_young_punctuation(c)) ||
         c == kOnce[0] || c == kOnce[1];
}

bool is_control(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return is_between(kind, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CO) && !is_young_format(c);
}

bool is_mark(char32_t c) {
  if (c < 0x300) return false;
  constexpr char32_t kOnce[] = {0x1CF2, 0x1CF3};  // are letters by now
  return (is_between(category(c), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME) &&
          !is_young_mark(c)) ||
         c == kOnce[0] || c == kOnce[1];
}

bool is_nonspacing(char32_t c) {
  if (c < 0x300) return false;
  constexpr char32_t kOnce = 0x1734;  // is a spacing one by now
  return (category(c) == UTF8PROC_CATEGORY_MN && !is_young_nonspacing(c)) || c == kOnce;
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 0x20 : c);
  } else if (c == 0x130) {  // the one whose lower case is two characters
    out += "i\xCC\x87";
  } else {
    append_char(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

/// A character that the tables followed do not know is one that nothing joins or is moved across:
/// the text between two of them is brought into its form by itself.
std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const utf8proc_option_t options = options_of(form);
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    const char32_t c = next_char(text, at);
    if (c < 0x300 || !has_young_form(c)) continue;
    append_form(out, text.substr(begin, here - begin), options);
    out += text.substr(here, at - here);
    begin = at;
  }
  append_form(out, text.substr(begin), options);
  return out;
}

size_t grapheme_bytes(std::string_view text) {
  size_t at = 0;
  char32_t before = next_char(text, at);
  utf8proc_int32_t state = 0;
  while (at < text.size()) {
    size_t behind = at;
    const char32_t c = next_char(text, behind);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                         static_cast<utf8proc_int32_t>(c), &state)) {
      break;
    }
    before = c;
    at = behind;
  }
  return at;
}

}  // namespace kuafu::tokenizer
