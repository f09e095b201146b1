// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/plan/plan.h"
#include "kuafu/tokenizer/tokenizer.h"

namespace kuafu {

/// Prompts as tokens and tokens as text, by the plan: ids of `data.tokenizer`, or bytes without one.
class TokenText {
 public:
  /// Throws ConfigError where the model has not a row for each token.
  TokenText(const DataPlan& data, const ModelPlan& model);

  /// The tokens of a text of any length, special ones around it where the tokenizer has them. Of more than
  /// `most` the text's own last ones are left out. Throws ConfigError where it is no UTF-8, empty, or of
  /// `most` none is left for the text.
  std::vector<int64_t> tokens_of(std::string_view text, std::optional<int64_t> most = {});
  /// The tokens of a prompt, special ones around it where the tokenizer has them. Throws ConfigError
  /// where it is no UTF-8, empty, leaves no position to go on at, or holds the end of a document where
  /// the plan keeps documents apart: what follows is foretold from all of the prompt.
  std::vector<int64_t> encode(std::string_view prompt);
  /// The text of what follows a prompt; U+FFFD for bytes that are no character. Ids that are no token
  /// are passed over.
  std::string continuation(const std::vector<int64_t>& prompt,
                           const std::vector<int64_t>& more) const;
  /// data.end_token, or what else ends a document.
  std::optional<int64_t> end_token() const { return end_; }
  /// Tokens there are: the model may have more rows.
  int64_t size() const { return size_; }

 private:
  std::string decode(const std::vector<int64_t>& ids) const;
  bool is_token(int32_t id) const;

  int64_t sequence_;
  bool keeps_documents_apart_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<int64_t> end_;
  int64_t size_ = 256;
};

}  // namespace kuafu
