// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kuafu/tokenizer/byte_trie.h"
#include "kuafu/tokenizer/component.h"
#include "kuafu/tokenizer/piece.h"
#include "kuafu/tokenizer/text_step.h"
#include "kuafu/tokenizer/vocabulary.h"

namespace kuafu::tokenizer {

/// Tokens that are looked for in a text before anything else happens to it.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// `part`: the list of the file. Tokens that the model knows keep its ids, others follow behind
  /// them in their order, whatever id the file has for them: so does the `tokenizers` package.
  /// `normalizer` may be null.
  AddedTokens(const Component& part, const Vocabulary& model, const TextStep<Piece>* normalizer);

  /// Cuts tokens out of a text: of those that are not normalized, then, `normalizer` applied to what
  /// is left, the others.
  Pieces cut(std::string_view text, const TextStep<Piece>* normalizer) const;

  int32_t id_of(std::string_view token) const { return vocabulary_.id_of(token); }
  /// As it is decoded; none: nullptr.
  const std::string* token_of(int32_t id) const;
  bool is_special(std::string_view token) const { return specials_.contains(token); }
  int32_t last_id() const { return vocabulary_.last_id(); }

 private:
  struct Token {
    std::string content;
    bool is_single_word = false, strips_left = false, strips_right = false;
    bool is_normalized = true, is_special = false;
    std::string searched;  ///< what of it is looked for, and decoded
  };

  Token token_from(const Component& part, const TextStep<Piece>* normalizer) const;
  void fill(const Component& part);
  /// Spans of tokens, which may overlap where one strips what another holds, and of what is between.
  void cut_piece(const Piece& piece, const ByteTrie& trie, Pieces& out) const;

  std::map<int32_t, Token> tokens_;
  Vocabulary vocabulary_;
  TextMap<bool> specials_;
  ByteTrie plain_, normalized_;
};

}  // namespace kuafu::tokenizer
