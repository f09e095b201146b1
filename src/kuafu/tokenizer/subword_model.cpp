// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/subword_model.h"

namespace kuafu::tokenizer {
namespace {

/// Files of before models had a type are told by their members.
std::string kind_of(const Component& part) {
  if (part.has("type")) return part.kind({"BPE", "WordPiece", "Unigram", "WordLevel"});
  if (part.has("merges")) return "BPE";
  if (part.has("max_input_chars_per_word")) return "WordPiece";
  if (part.has("vocab") && part.at("vocab").value().is_array()) return "Unigram";
  return part.kind({});
}

}  // namespace

std::unique_ptr<SubwordModel> make_model(const Component& part) {
  const std::string kind = kind_of(part);
  if (kind == "BPE") return make_bpe(part);
  if (kind == "WordPiece") return make_word_piece(part);
  if (kind == "Unigram") return make_unigram(part);
  return make_word_level(part);
}

}  // namespace kuafu::tokenizer
