// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/lossy_utf8.h"

namespace kuafu::tokenizer {
namespace {

/// What follows a first byte: how many bytes, and what the first of them may be.
struct Lead {
  size_t more = 0;
  unsigned char least = 0x80, most = 0xBF;
};

Lead lead_of(unsigned char first) {
  if (first >= 0xC2 && first <= 0xDF) return {1};
  if (first == 0xE0) return {2, 0xA0, 0xBF};
  if (first == 0xED) return {2, 0x80, 0x9F};
  if (first >= 0xE1 && first <= 0xEF) return {2};
  if (first == 0xF0) return {3, 0x90, 0xBF};
  if (first == 0xF4) return {3, 0x80, 0x8F};
  if (first >= 0xF1 && first <= 0xF3) return {3};
  return {};
}

}  // namespace

std::string lossy_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[at]);
    const Lead lead = lead_of(first);
    size_t end = at + 1;
    for (size_t i = 0; i < lead.more && end < bytes.size(); ++i, ++end) {
      const auto byte = static_cast<unsigned char>(bytes[end]);
      const bool may_follow =
          i == 0 ? byte >= lead.least && byte <= lead.most : byte >= 0x80 && byte <= 0xBF;
      if (!may_follow) break;
    }
    const bool is_char = first < 0x80 || (lead.more > 0 && end - at == lead.more + 1);
    out += is_char ? bytes.substr(at, end - at) : std::string_view("\xEF\xBF\xBD");
    at = end;
  }
  return out;
}

}  // namespace kuafu::tokenizer
