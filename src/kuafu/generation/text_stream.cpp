// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/text_stream.h"

#include <algorithm>
#include <string_view>

namespace kuafu {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// The bytes at the end of `text` with which `whole` begins, all of which it is not.
size_t begun(std::string_view text, std::string_view whole) {
  for (size_t n = std::min(text.size(), whole.size() - 1); n > 0; --n) {
    if (text.ends_with(whole.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::string TextStream::tell_up_to(size_t end) {
  if (end <= told_.size()) return "";
  std::string more = text_.substr(told_.size(), end - told_.size());
  told_ += more;
  return more;
}

bool TextStream::stop_within(std::string_view sure) {
  size_t stop = std::string::npos;
  for (const std::string& s : stops_) stop = std::min(stop, sure.find(s, told_.size()));
  if (stop == std::string::npos) return false;
  is_stopped_ = true;
  text_.resize(stop);
  return true;
}

std::string TextStream::add(const std::string& text) {
  if (is_stopped_) return "";
  text_ = text;
  std::string_view sure = text_;
  while (sure.ends_with(kReplacement)) sure.remove_suffix(kReplacement.size());
  if (stop_within(sure)) return tell_up_to(text_.size());
  size_t held = 0;
  for (const std::string& s : stops_) held = std::max(held, begun(sure, s));
  return tell_up_to(sure.size() - held);
}

std::string TextStream::finish() {
  if (!is_stopped_) stop_within(text_);
  return tell_up_to(text_.size());
}

}  // namespace kuafu
