// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/added_tokens.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/tokenizer/characters.h"

namespace kuafu::tokenizer {
namespace {

/// A token that was found.
struct Found {
  size_t bytes = 0;
  int32_t id = ByteTrie::kNone;
};

Found longest_at(const ByteTrie& trie, std::string_view text) {
  Found found;
  trie.each_prefix(text, [&](size_t bytes, int32_t id) { found = {bytes, id}; });
  return found;
}

bool is_single(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(char_before(text, begin))) return false;
  return end >= text.size() || !is_word(next_char(text, end));
}

size_t space_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const char32_t c = char_before(text, end);
    if (!is_space(c)) break;
    end -= to_utf8(c).size();
  }
  return end;
}

size_t space_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t behind = at;
    if (!is_space(next_char(text, behind))) break;
    at = behind;
  }
  return at;
}

}  // namespace

AddedTokens::AddedTokens(const Component& part, const Vocabulary& model,
                         const TextStep<Piece>* normalizer) {
  int32_t next = static_cast<int32_t>(model.num_tokens());
  for (const Component& element : part.elements()) {
    Token token = token_from(element, normalizer);
    if (token.content.empty()) continue;
    int32_t id = vocabulary_.id_of(token.content);
    if (id == Vocabulary::kNone) id = model.id_of(token.content);
    if (id == Vocabulary::kNone) id = next++;
    vocabulary_.set(token.content, id);
    if (token.is_special) specials_[token.content] = true;
    tokens_[id] = std::move(token);
  }
  fill(part);
}

AddedTokens::Token AddedTokens::token_from(const Component& part,
                                           const TextStep<Piece>* normalizer) const {
  part.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  part.at("id").id();
  Token token = {part.at("content").text(),
                 part.at("single_word").boolean(),
                 part.at("lstrip").boolean(),
                 part.at("rstrip").boolean(),
                 part.at("normalized").boolean(),
                 part.at("special").boolean(),
                 ""};
  token.searched = token.content;
  if (token.is_normalized && normalizer != nullptr) {
    Piece piece = {token.content, token.content.empty() ? 0 : char_bytes(token.content[0])};
    normalizer->apply(piece);
    token.searched = piece.text;
  }
  return token;
}

void AddedTokens::fill(const Component& part) {
  std::map<std::pair<bool, std::string>, const Token*> known;
  for (const auto& [id, token] : tokens_) {
    if (token.searched.empty()) {
      part.fail(text(" has the token ", in_quotes(token.content), ", of which normalizing leaves ",
                     "nothing; say \"normalized\": false of it"));
    }
    const auto [other, is_new] = known.try_emplace({token.is_normalized, token.searched}, &token);
    if (!is_new) {
      part.fail(text(" has the tokens ", in_quotes(other->second->content), " and ",
                     in_quotes(token.content),
                     ", which are normalized to the same; leave one out"));
    }
    (token.is_normalized ? normalized_ : plain_).add(token.searched, id);
  }
}

const std::string* AddedTokens::token_of(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.searched;
}

void AddedTokens::cut_piece(const Piece& piece, const ByteTrie& trie, Pieces& out) const {
  const std::string_view text = piece.text;
  size_t covered = 0;
  for (size_t at = 0; at < text.size();) {
    const Found found = trie.may_begin(text[at]) ? longest_at(trie, text.substr(at)) : Found{};
    if (found.id == ByteTrie::kNone) {
      ++at;
      continue;
    }
    const Token& token = tokens_.at(found.id);
    size_t begin = at, end = at + found.bytes;
    at = end;
    if (token.is_single_word && !is_single(text, begin, end)) continue;
    if (token.strips_left) begin = std::max(space_begin(text, begin), covered);
    if (token.strips_right) end = space_end(text, end);
    if (covered < begin) out.push_back(piece.part(covered, begin));
    if (begin < end) {
      out.push_back(piece.part(begin, end));
      out.back().id = found.id;
    }
    covered = end;
  }
  if (covered < text.size()) out.push_back(piece.part(covered, text.size()));
}

Pieces AddedTokens::cut(std::string_view text, const TextStep<Piece>* normalizer) const {
  Pieces plain, out;
  if (text.empty()) return plain;
  cut_piece({std::string(text), char_bytes(text[0])}, plain_, plain);
  for (Piece& piece : plain) {
    if (piece.is_token()) {
      out.push_back(std::move(piece));
      continue;
    }
    if (normalizer != nullptr) normalizer->apply(piece);
    cut_piece(piece, normalized_, out);
  }
  return out;
}

}  // namespace kuafu::tokenizer
