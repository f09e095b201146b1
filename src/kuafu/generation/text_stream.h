// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

/// Text that grows token by token, told as soon as it can no longer change: not the end of a
/// character whose other bytes are to come, nor what may be the beginning of a stop string.
class TextStream {
 public:
  /// @pre stop strings are UTF-8 and not empty
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Takes all of the text so far, in which U+FFFD stands for bytes that are no character (yet);
  /// returns what may be told now. From the first stop string on there is no more text.
  std::string add(const std::string& text);
  /// The rest: what was held back.
  std::string finish();

  bool is_stopped() const { return is_stopped_; }
  /// All that was told.
  const std::string& told() const { return told_; }

 private:
  std::string tell_up_to(size_t end);
  /// Ends the text before the first stop string of what can no longer change; whether there is one.
  bool stop_within(std::string_view sure);

  std::vector<std::string> stops_;
  std::string text_, told_;
  bool is_stopped_ = false;
};

}  // namespace kuafu
