// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/vocabulary.h"

#include <algorithm>
#include <cstdio>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"

namespace kuafu::tokenizer {

Vocabulary::Vocabulary(const Component& part) {
  if (!part.value().is_object()) part.refuse("an object of tokens and their ids");
  ids_.reserve(part.value().size());
  tokens_.reserve(part.value().size());
  for (const auto& [token, value] : part.value().items()) {
    const bool is_id = value.is_number_unsigned() && value < (int64_t{1} << 31) - 1;
    const int32_t id = is_id ? value.get<int32_t>() : part.at(token).id();
    const std::string* const other = token_of(id);
    if (other != nullptr) {
      part.fail(text(" gives id ", id, " to ", in_quotes(*other), " and to ", in_quotes(token),
                     "; a token needs an id of its own"));
    }
    set(token, id);
  }
}

void Vocabulary::set(std::string_view token, int32_t id) {
  const auto [place, is_new] = ids_.try_emplace(std::string(token), id);
  place->second = id;
  tokens_[id] = &place->first;
  last_ = std::max(last_, id);
}

const std::string* Vocabulary::token_of(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : found->second;
}

std::string byte_token(unsigned char byte) {
  char token[8];
  std::snprintf(token, sizeof(token), "<0x%02X>", byte);
  return token;
}

}  // namespace kuafu::tokenizer
