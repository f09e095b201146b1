// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/token_text.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/dataset/dataset.h"

namespace kuafu {

TokenText::TokenText(const DataPlan& data, const ModelPlan& model)
    : sequence_(model.sequence), keeps_documents_apart_(data.document_mask) {
  if (data.tokenizer.empty()) {
    KUAFU_REQUIRE(model.vocab >= size_, "model.vocab = ", model.vocab,
                  ": without data.tokenizer a token is a byte, of which there are ", size_,
                  "; set data.tokenizer");
    end_ = end_of_documents(data);
    return;
  }
  tokenizer_ = Tokenizer::load(data.tokenizer);
  size_ = tokenizer_->vocab_size();
  KUAFU_REQUIRE(model.vocab >= size_, "model.vocab = ", model.vocab, ": ", data.tokenizer, " has ",
                size_, " tokens; give the tokenizer that the model was trained with");
  if (data.end_token.empty()) return;
  end_ = tokenizer_->id_of(data.end_token);
  KUAFU_REQUIRE(end_, "data.end_token = ", in_quotes(data.end_token), " is no token of ",
                data.tokenizer);
}

std::vector<int64_t> TokenText::tokens_of(std::string_view text, std::optional<int64_t> most) {
  KUAFU_REQUIRE(is_utf8(text), in_quotes(as_utf8(utf8_prefix(text, 40))), " is no UTF-8");
  std::vector<int64_t> ids;
  std::vector<int32_t> plain;
  if (tokenizer_) {
    const std::vector<int32_t> own = tokenizer_->encode(text, SpecialTokens::kWith);
    ids.assign(own.begin(), own.end());
    if (most && std::ssize(ids) > *most) plain = tokenizer_->encode(text);
  } else {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    if (most && std::ssize(ids) > *most) plain.assign(ids.begin(), ids.end());
  }
  KUAFU_REQUIRE(!text.empty() && !ids.empty(), "it is empty; give at least one token");
  if (!most || std::ssize(ids) <= *most) return ids;
  // Special tokens stand around the text's own, which lie together.
  const auto at = std::search(ids.begin(), ids.end(), plain.begin(), plain.end());
  const int64_t special = std::ssize(ids) - std::ssize(plain), over = std::ssize(ids) - *most;
  KUAFU_REQUIRE(at != ids.end() && special >= 0,
                "the tokenizer does not put a text in once, as it is, "
                "so that it cannot be cut to ",
                *most, " tokens; give a shorter one");
  KUAFU_REQUIRE(*most > special, "of ", *most, " tokens ", special,
                " are special ones, and none is left for the text; allowed: from ", special + 1);
  const auto end = at + std::ssize(plain);
  ids.erase(end - over, end);
  return ids;
}

std::vector<int64_t> TokenText::encode(std::string_view prompt) {
  std::vector<int64_t> ids = tokens_of(prompt);
  KUAFU_REQUIRE(std::ssize(ids) < sequence_, "it has ", ids.size(),
                " tokens, and model.sequence = ", sequence_, " has positions for ", sequence_ - 1,
                " and one to generate; give a shorter one");
  KUAFU_REQUIRE(
      !keeps_documents_apart_ || std::ranges::count(ids, *end_) == 0, "it has the token ", *end_,
      " that ends a document, and data.document_mask = true keeps documents apart; give a "
      "prompt of one document, or set data.document_mask = false");
  return ids;
}

bool TokenText::is_token(int32_t id) const {
  try {
    tokenizer_->decode({&id, 1}, SpecialTokens::kWith);
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

std::string TokenText::decode(const std::vector<int64_t>& ids) const {
  if (!tokenizer_) {
    std::string bytes;
    for (const int64_t id : ids) {
      if (id < size_) bytes += static_cast<char>(id);
    }
    return as_utf8(bytes);
  }
  std::vector<int32_t> known;
  for (const int64_t id : ids) {
    if (id < size_) known.push_back(static_cast<int32_t>(id));
  }
  try {
    return tokenizer_->decode(known);
  } catch (const ConfigError&) {  // a row of the model between the tokens
    std::erase_if(known, [this](int32_t id) { return !is_token(id); });
    return tokenizer_->decode(known);
  }
}

std::string TokenText::continuation(const std::vector<int64_t>& prompt,
                                    const std::vector<int64_t>& more) const {
  if (!tokenizer_) return decode(more);
  // Decoders treat the first token as the beginning of a text, so that it is decoded behind others.
  std::vector<int64_t> all = prompt;
  all.insert(all.end(), more.begin(), more.end());
  const std::string before = decode(prompt), whole = decode(all);
  return whole.starts_with(before) ? whole.substr(before.size()) : decode(more);
}

}  // namespace kuafu
