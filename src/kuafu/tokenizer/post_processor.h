// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/tokenizer/component.h"

namespace kuafu::tokenizer {

/// What a text's tokens are put between.
class PostProcessor {
 public:
  PostProcessor() = default;
  explicit PostProcessor(const Component& part);

  /// The tokens with the special ones around them, or without.
  std::vector<int32_t> applied(std::vector<int32_t> ids, bool has_special) const;
  /// The largest id that it puts anywhere; -1: none.
  int32_t last_id() const;

 private:
  /// The tokens of the text, or special ones.
  struct Item {
    bool is_text = false;
    std::vector<int32_t> ids = {};
  };
  using Template = std::vector<Item>;

  void add(const Component& part);
  void add_template(const Component& part);
  void add_between(const Component& part);

  std::vector<Template> templates_;  ///< one after the other
  bool has_template_ = false;
};

}  // namespace kuafu::tokenizer
