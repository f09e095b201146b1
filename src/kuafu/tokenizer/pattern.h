// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/tokenizer/component.h"
#include "kuafu/tokenizer/piece.h"
#include "kuafu/tokenizer/regex.h"

namespace kuafu::tokenizer {

/// {"String": "..."} or {"Regex": "..."} of a tokenizer file.
class Pattern {
 public:
  explicit Pattern(const Component& part);

  /// Matches and what lies between them: the whole text.
  std::vector<Span> find(std::string_view text) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace kuafu::tokenizer
