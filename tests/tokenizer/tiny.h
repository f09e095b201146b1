// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/base/errors.h"
#include "kuafu/record/json.h"
#include "kuafu/tokenizer/tokenizer.h"

namespace kuafu::test {

/// A model of words that are tokens: what a normalizer and splits make of a text is seen in ids.
inline Json word_level(const std::vector<std::string>& words) {
  Json vocab = {{"[UNK]", 0}};
  for (const std::string& word : words) vocab[word] = vocab.size();
  return {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "[UNK]"}};
}

/// A file of this model; `parts` are its other members.
inline Json file_of(const Json& model, const Json& parts = Json::object()) {
  Json file = {{"version", "1.0"}, {"model", model}};
  file.update(parts);
  return file;
}

inline Tokenizer tokenizer_of(const Json& file) { return Tokenizer::parse(file.dump(), "t.json"); }

inline std::vector<int32_t> ids_of(const Json& file, const std::string& text) {
  return tokenizer_of(file).encode(text);
}

/// The message with which a file is refused; empty: it is not.
inline std::string refusal_of(const Json& file) {
  try {
    tokenizer_of(file);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

using Ids = std::vector<int32_t>;

}  // namespace kuafu::test
