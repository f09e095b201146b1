// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/byte_level.h"

#include <array>

#include "kuafu/tokenizer/characters.h"

namespace kuafu::tokenizer {
namespace {

constexpr bool prints(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// Bytes that print are themselves, the others follow from U+0100 on.
constexpr std::array<char32_t, 256> make_chars() {
  std::array<char32_t, 256> chars = {};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    chars[static_cast<size_t>(byte)] = prints(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return chars;
}

constexpr std::array<char32_t, 256> kChars = make_chars();
constexpr size_t kNumChars = 0x100 + 68;  // 68 bytes do not print

constexpr std::array<int16_t, kNumChars> make_bytes() {
  std::array<int16_t, kNumChars> bytes = {};
  for (int16_t& byte : bytes) byte = -1;
  for (size_t byte = 0; byte < 256; ++byte) bytes[kChars[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, kNumChars> kBytes = make_bytes();

enum class CharKind : uint8_t { kSpace, kLetter, kNumber, kOther };

CharKind kind_of(char32_t c) {
  return is_letter(c)   ? CharKind::kLetter
         : is_space(c)  ? CharKind::kSpace
         : is_number(c) ? CharKind::kNumber
                        : CharKind::kOther;
}

/// Bytes of 's, 't, 're, 've, 'm, 'll or 'd; 0: another text.
size_t contraction_bytes(std::string_view text) {
  if (text[0] != '\'' || text.size() < 2) return 0;
  switch (text[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return text.size() > 2 && text[2] == 'e' ? 3 : 0;
    case 'l':
      return text.size() > 2 && text[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

/// Where the run of characters of `kind` that is at `at` ends.
size_t run_end(std::string_view text, size_t at, CharKind kind) {
  while (at < text.size()) {
    size_t behind = at;
    if (kind_of(next_char(text, behind)) != kind) break;
    at = behind;
  }
  return at;
}

/// The end of the span that begins at `at`.
size_t span_end(std::string_view text, size_t at) {
  const size_t contraction = contraction_bytes(text.substr(at));
  if (contraction > 0) return at + contraction;
  const size_t word = at + (text[at] == ' ' ? 1 : 0);
  if (word < text.size()) {
    size_t behind = word;
    const CharKind kind = kind_of(next_char(text, behind));
    if (kind != CharKind::kSpace) return run_end(text, behind, kind);
  }
  const size_t end = run_end(text, at, CharKind::kSpace);
  if (end == text.size()) return end;
  size_t last = end - 1;
  while ((static_cast<unsigned char>(text[last]) & 0xC0u) == 0x80) --last;
  return last > at ? last : end;
}

}  // namespace

void append_byte_chars(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) append_char(out, kChars[static_cast<unsigned char>(byte)]);
}

bool append_char_bytes(std::string& out, std::string_view token) {
  const size_t before = out.size();
  for (size_t at = 0; at < token.size();) {
    const char32_t c = next_char(token, at);
    const int16_t byte = c < kNumChars ? kBytes[c] : int16_t{-1};
    if (byte < 0) return out.resize(before), false;
    out += static_cast<char>(byte);
  }
  return true;
}

std::vector<Span> gpt2_spans(std::string_view text) {
  std::vector<Span> spans;
  for (size_t at = 0; at < text.size();) {
    const size_t end = span_end(text, at);
    spans.push_back({at, end, true});
    at = end;
  }
  return spans;
}

}  // namespace kuafu::tokenizer
