// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/tokenizer/component.h"

namespace kuafu::tokenizer {

/// Spaces as a character that stays in the tokens; before a text without one it is put, or not.
struct Metaspace {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };

  explicit Metaspace(const Component& part);

  std::string replacement;  ///< one character
  Prepend prepend = Prepend::kAlways;
  bool splits = true;
};

}  // namespace kuafu::tokenizer
