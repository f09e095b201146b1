// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/tokenizer.h"

#include <algorithm>

#include "kuafu/base/config.h"
#include "kuafu/base/errors.h"
#include "kuafu/base/utf8.h"
#include "kuafu/tokenizer/added_tokens.h"
#include "kuafu/tokenizer/component.h"
#include "kuafu/tokenizer/decoders.h"
#include "kuafu/tokenizer/normalizers.h"
#include "kuafu/tokenizer/post_processor.h"
#include "kuafu/tokenizer/pre_tokenizers.h"
#include "kuafu/tokenizer/subword_model.h"

namespace kuafu {

/// In the order in which a text passes them; steps that the file leaves out are null.
struct Tokenizer::Parts {
  std::string name;
  tokenizer::AddedTokens added;
  std::unique_ptr<tokenizer::Normalizer> normalizer;
  std::unique_ptr<tokenizer::PreTokenizer> pre_tokenizer;
  std::unique_ptr<tokenizer::SubwordModel> model;
  tokenizer::PostProcessor post_processor;
  std::unique_ptr<tokenizer::Decoder> decoder;

  /// The token of an id as it is decoded; null where there is none.
  const std::string* token_of(int32_t id) const {
    const std::string* const token = added.token_of(id);
    return token != nullptr ? token : model->vocabulary().token_of(id);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

namespace {

/// "truncation" and "padding" are what whoever wrote the file made batches with: checked and passed over,
/// as transformers does, whose calls say anew what they want. A text keeps its length here.
void check_batches(const tokenizer::Component& file) {
  if (file.has("truncation")) {
    const tokenizer::Component cut = file.at("truncation");
    cut.allow({"direction", "max_length", "strategy", "stride"});
    cut.at("max_length").count();
    if (cut.has("stride")) cut.at("stride").count();
  }
  if (!file.has("padding")) return;
  const tokenizer::Component pad = file.at("padding");
  pad.allow({"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"});
  if (pad.has("pad_id")) pad.at("pad_id").id();
  if (pad.has("pad_token")) pad.at("pad_token").text();
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& path) {
  return parse(read_file(path, "tokenizer"), path);
}

Tokenizer Tokenizer::parse(std::string_view bytes, const std::string& name) {
  const tokenizer::Members document = tokenizer::parse_members(name, bytes);
  const tokenizer::Component file(name, document, "");
  file.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"});
  if (file.has("version")) file.at("version").one_of({"1.0"});
  check_batches(file);
  auto parts = std::make_unique<Parts>();
  parts->name = name;
  parts->model = tokenizer::make_model(file.at("model"));
  if (file.has("normalizer")) {
    parts->normalizer = tokenizer::make_normalizer(file.at("normalizer"));
  }
  if (file.has("pre_tokenizer")) {
    parts->pre_tokenizer = tokenizer::make_pre_tokenizer(file.at("pre_tokenizer"));
  }
  if (file.has("post_processor")) {
    parts->post_processor = tokenizer::PostProcessor(file.at("post_processor"));
  }
  if (file.has("decoder")) parts->decoder = tokenizer::make_decoder(file.at("decoder"));
  if (file.has("added_tokens")) {
    parts->added = tokenizer::AddedTokens(file.at("added_tokens"), parts->model->vocabulary(),
                                          parts->normalizer.get());
  }
  return Tokenizer(std::move(parts));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) {
  if (!is_utf8(text)) {
    size_t good = 0;
    while (good < text.size()) {
      const size_t more = tokenizer::char_bytes(text[good]);
      if (!is_utf8(text.substr(good, more))) break;
      good += more;
    }
    throw ConfigError(kuafu::text("a text of ", text.size(), " bytes is no UTF-8: its byte ", good,
                                  " begins no character; tokenizers take UTF-8 alone"));
  }
  tokenizer::Pieces pieces = parts_->added.cut(text, parts_->normalizer.get());
  if (parts_->pre_tokenizer) parts_->pre_tokenizer->apply(pieces);
  std::vector<int32_t> ids;
  for (const tokenizer::Piece& piece : pieces) {
    if (piece.is_token()) {
      ids.push_back(piece.id);
    } else if (!piece.text.empty()) {
      parts_->model->encode(piece.text, ids);
    }
  }
  return parts_->post_processor.applied(std::move(ids), special == SpecialTokens::kWith);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialTokens special) const {
  tokenizer::TokenTexts tokens;
  for (const int32_t id : ids) {
    const std::string* const token = parts_->token_of(id);
    KUAFU_REQUIRE(token != nullptr, "id ", id, " is no token of ", parts_->name,
                  "; its ids are below ", vocab_size());
    if (special == SpecialTokens::kWithout && parts_->added.is_special(*token)) continue;
    tokens.push_back(*token);
  }
  std::string text;
  if (parts_->decoder) {
    parts_->decoder->apply(tokens);
    for (const std::string& token : tokens) text += token;
    return text;
  }
  for (const std::string& token : tokens) {
    if (&token != tokens.data()) text += ' ';
    text += token;
  }
  return text;
}

int64_t Tokenizer::vocab_size() const {
  return int64_t{1} + std::max({parts_->model->vocabulary().last_id(), parts_->added.last_id(),
                                parts_->post_processor.last_id()});
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const int32_t added = parts_->added.id_of(token);
  const int32_t id = added >= 0 ? added : parts_->model->vocabulary().id_of(token);
  return id >= 0 ? std::optional(id) : std::nullopt;
}

bool has_tokenizers() { return true; }

}  // namespace kuafu
