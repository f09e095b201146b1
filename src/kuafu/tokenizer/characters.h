// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kuafu::tokenizer {

/// The character at byte `at`, which moves behind it. @pre `text` is UTF-8 and goes on at `at`
inline char32_t next_char(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const uint32_t first = byte(0);
  if (first < 0x80) return at += 1, first;
  if (first < 0xE0) {
    const uint32_t c = (first & 0x1F) << 6 | (byte(1) & 0x3F);
    return at += 2, c;
  }
  if (first < 0xF0) {
    const uint32_t c = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    return at += 3, c;
  }
  const uint32_t c =
      (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  return at += 4, c;
}

/// The character before byte `end`. @pre end > 0
char32_t char_before(std::string_view text, size_t end);

/// Bytes of the character that begins with this byte.
inline size_t char_bytes(char first_byte) {
  const auto first = static_cast<unsigned char>(first_byte);
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

void append_char(std::string& out, char32_t c);
std::string to_utf8(char32_t c);
size_t count_chars(std::string_view text);

// What a character is, as the `tokenizers` package (0.23) sees it: each of its libraries has tables
// of another age (README.md), and where such an age shows, it is followed.

bool is_letter(char32_t c);       ///< L
bool is_number(char32_t c);       ///< N
bool is_space(char32_t c);        ///< White_Space
bool is_word(char32_t c);         ///< \w of regular expressions
bool is_punctuation(char32_t c);  ///< P, and the symbols of ASCII
bool is_control(char32_t c);      ///< C but for what is not assigned
bool is_mark(char32_t c);         ///< M
bool is_nonspacing(char32_t c);   ///< Mn

/// Lower case of one character, which may be two: no context, no language.
void append_lower(std::string& out, char32_t c);

enum class NormalForm : uint8_t { kC, kD, kKC, kKD };

std::string normal_form(std::string_view text, NormalForm form);

/// Bytes of the first grapheme cluster. @pre `text` is UTF-8 and not empty
size_t grapheme_bytes(std::string_view text);

}  // namespace kuafu::tokenizer
