// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kuafu/tokenizer/flat_map.h"

namespace kuafu::tokenizer {

/// Which of many strings a text goes on with.
class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;

  /// Adds a string; of equal ones the last. @pre `word` is not empty
  void add(std::string_view word, int32_t id) {
    uint32_t node = kRoot;
    for (const char c : word) {
      uint32_t& next = children_[key_of(node, c)];
      if (next == kRoot) {
        next = static_cast<uint32_t>(ids_.size());
        ids_.push_back(kNone);
      }
      node = next;
    }
    ids_[node] = id;
    begins_[static_cast<unsigned char>(word[0])] = true;
  }

  /// Whether a string begins with this byte.
  bool may_begin(char first) const { return begins_[static_cast<unsigned char>(first)]; }

  /// Calls `found(bytes, id)` for every string that `text` begins with, shortest first.
  template <class Found>
  void each_prefix(std::string_view text, const Found& found) const {
    uint32_t node = kRoot;
    for (size_t at = 0; at < text.size(); ++at) {
      const uint32_t* const next = children_.find(key_of(node, text[at]));
      if (next == nullptr) return;
      node = *next;
      if (ids_[node] != kNone) found(at + 1, ids_[node]);
    }
  }

 private:
  static constexpr uint32_t kRoot = 0;

  static uint64_t key_of(uint32_t node, char c) {
    return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
  }

  FlatMap<uint32_t> children_;
  std::vector<int32_t> ids_ = {kNone};
  std::array<bool, 256> begins_ = {};
};

}  // namespace kuafu::tokenizer
