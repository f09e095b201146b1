// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kuafu/tokenizer/component.h"
#include "kuafu/tokenizer/vocabulary.h"

namespace kuafu::tokenizer {

/// What makes tokens of a word. One thread at a time: a model may remember words.
class SubwordModel {
 public:
  virtual ~SubwordModel() = default;
  /// Appends the tokens of a word. Throws ConfigError where the word has none and the model names no
  /// token for it. @pre `word` is UTF-8 and not empty
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) = 0;
  virtual const Vocabulary& vocabulary() const = 0;
};

/// The member `model` of a file.
std::unique_ptr<SubwordModel> make_model(const Component& part);

std::unique_ptr<SubwordModel> make_bpe(const Component& part);
std::unique_ptr<SubwordModel> make_word_piece(const Component& part);
std::unique_ptr<SubwordModel> make_word_level(const Component& part);
std::unique_ptr<SubwordModel> make_unigram(const Component& part);

}  // namespace kuafu::tokenizer
