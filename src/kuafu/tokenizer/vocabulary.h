// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kuafu/tokenizer/component.h"

namespace kuafu::tokenizer {

/// Hashes strings by what they hold, so that a view finds one.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <class Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

/// Tokens and their ids, one to one.
class Vocabulary {
 public:
  static constexpr int32_t kNone = -1;

  Vocabulary() = default;
  /// {"token": id, ...}; refuses two tokens of one id.
  explicit Vocabulary(const Component& part);

  /// Adds a token, or gives one that is there another id.
  void set(std::string_view token, int32_t id);

  int32_t id_of(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? kNone : found->second;
  }
  /// None: nullptr.
  const std::string* token_of(int32_t id) const;
  int64_t num_tokens() const { return static_cast<int64_t>(ids_.size()); }
  /// The largest id; kNone where there is no token.
  int32_t last_id() const { return last_; }

 private:
  TextMap<int32_t> ids_;
  std::unordered_map<int32_t, const std::string*> tokens_;
  int32_t last_ = kNone;
};

/// "<0x0A>": the token of a byte that no other token holds.
std::string byte_token(unsigned char byte);

}  // namespace kuafu::tokenizer
