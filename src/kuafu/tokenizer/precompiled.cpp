// SPDX-License-Identifier: Apache-2.0
//
// Rules that sentencepiece compiles: 4 bytes with the length of a double array in bytes, the array,
// texts that end with a zero byte. A unit of the array, bit by bit:
//   0..7    the byte that leads here          8     whether a string ends here
//   9       whether the offset is times 256   10..  offset of the children
// and of a unit that ends a string bits 0..30 are where its text begins.

#include <optional>

#include "kuafu/base/utf8.h"
#include "kuafu/tokenizer/normalizers.h"

namespace kuafu::tokenizer {
namespace {

constexpr size_t kUnitBytes = 4;

/// The bytes of base64; none where it is not.
std::optional<std::string> from_base64(std::string_view coded) {
  while (!coded.empty() && coded.back() == '=') coded.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : coded) {
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<uint32_t>(digit);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> held & 0xFF);
  }
  return out;
}

uint32_t unit_at(std::string_view bytes, size_t index) {
  uint32_t unit = 0;
  for (size_t i = 0; i < kUnitBytes; ++i) {
    unit |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[kUnitBytes * index + i]))
            << (8 * i);
  }
  return unit;
}

class Rules {
 public:
  explicit Rules(const Component& part) {
    const std::optional<std::string> bytes = from_base64(part.text());
    const bool has_length = bytes && bytes->size() >= kUnitBytes;
    const size_t array = has_length ? unit_at(*bytes, 0) : 0;
    if (!has_length || array % kUnitBytes != 0 || array == 0 ||
        array > bytes->size() - kUnitBytes) {
      part.fail(" is no compiled rules: base64 of a length, a double array of it, and texts");
    }
    for (size_t i = 1; i <= array / kUnitBytes; ++i) units_.push_back(unit_at(*bytes, i));
    texts_ = bytes->substr(kUnitBytes + array);
    if (!is_utf8(texts_)) part.fail(" is no compiled rules: their texts are no UTF-8");
  }

  /// What the shortest string that `text` begins with becomes; none where there is none.
  std::optional<std::string_view> replacement(std::string_view text) const {
    size_t node = offset_of(units_[0]);
    for (const char c : text) {
      const uint32_t byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || (units_[node] & 0x800000FFu) != byte) return {};
      const bool is_end = (units_[node] >> 8 & 1) != 0;
      node ^= offset_of(units_[node]);
      if (!is_end) continue;
      const size_t where = node < units_.size() ? units_[node] & 0x7FFFFFFFu : texts_.size();
      const bool is_char =
          where < texts_.size() && (static_cast<unsigned char>(texts_[where]) & 0xC0u) != 0x80;
      if (!is_char) return {};
      return std::string_view(texts_.c_str() + where);
    }
    return {};
  }

 private:
  static size_t offset_of(uint32_t unit) {
    return static_cast<size_t>(unit >> 10) << ((unit & 1u << 9) >> 6);
  }

  std::vector<uint32_t> units_;
  std::string texts_;
};

/// Grapheme by grapheme: a short one that has a rule as a whole, the others by their characters.
void apply(const Rules& rules, Piece& piece) {
  constexpr size_t kLongest = 6;
  std::string out;
  size_t from_start = 0, at = 0;
  const std::string_view text = piece.text;
  while (at < text.size()) {
    const size_t end = at + grapheme_bytes(text.substr(at));
    const std::string_view cluster = text.substr(at, end - at);
    const auto whole = cluster.size() < kLongest ? rules.replacement(cluster) : std::nullopt;
    if (whole) out += *whole;
    for (size_t next = at; !whole && next < end;) {
      const std::string_view part = text.substr(next, char_bytes(text[next]));
      out += rules.replacement(part).value_or(part);
      next += part.size();
      if (next <= piece.from_start) from_start = out.size();
    }
    if (whole && at < piece.from_start) from_start = out.size();
    at = end;
  }
  piece.text = std::move(out);
  piece.from_start = from_start;
}

}  // namespace

StepPtr<Piece> make_precompiled(const Component& part) {
  part.allow({"precompiled_charsmap"});
  return step<Piece>(
      [rules = Rules(part.at("precompiled_charsmap"))](Piece& piece) { apply(rules, piece); });
}

}  // namespace kuafu::tokenizer
