// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/pattern.h"

#include "kuafu/base/errors.h"

namespace kuafu::tokenizer {

Pattern::Pattern(const Component& part) {
  const bool is_regex = part.has("Regex");
  if (is_regex == part.has("String")) part.refuse(R"({"String": "..."} or {"Regex": "..."})");
  const Component words = part.at(is_regex ? "Regex" : "String");
  literal_ = words.text();
  if (literal_.empty()) words.refuse("a string that is not empty");
  if (!is_regex) return;
  try {
    regex_.emplace(literal_);
  } catch (const ConfigError& error) {
    words.fail(text(": ", error.what()));
  }
}

std::vector<Span> Pattern::find(std::string_view text) const {
  if (regex_) return regex_->find(text);
  std::vector<Span> spans;
  size_t covered = 0;
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, covered)) {
    if (covered < at) spans.push_back({covered, at, false});
    covered = at + literal_.size();
    spans.push_back({at, covered, true});
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), false});
  return spans;
}

}  // namespace kuafu::tokenizer
