// SPDX-License-Identifier: Apache-2.0
//
// WordPiece: the longest token that a word begins with, then the longest that it goes on with. And
// WordLevel: a word is a token.

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/tokenizer/characters.h"
#include "kuafu/tokenizer/subword_model.h"

namespace kuafu::tokenizer {
namespace {

int32_t unknown_of(const Vocabulary& vocabulary, const std::string& unk_token) {
  const int32_t id = vocabulary.id_of(unk_token);
  KUAFU_REQUIRE(id != Vocabulary::kNone, "the text has a word that the tokenizer lacks, and ",
                "model.vocab lacks model.unk_token, ", in_quotes(unk_token));
  return id;
}

class WordPiece final : public SubwordModel {
 public:
  explicit WordPiece(const Component& part)
      : vocabulary_(part.at("vocab")),
        unk_token_(part.at("unk_token").text()),
        prefix_(part.at("continuing_subword_prefix").text()),
        most_chars_(part.at("max_input_chars_per_word").count()) {
    part.allow({"vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"});
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) override {
    const size_t before = ids.size();
    if (static_cast<int64_t>(count_chars(word)) <= most_chars_ && append_parts(word, ids)) return;
    ids.resize(before);
    ids.push_back(unknown_of(vocabulary_, unk_token_));
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  /// False: somewhere no token goes on.
  bool append_parts(std::string_view word, std::vector<int32_t>& ids) const {
    std::string rest(word);
    for (size_t begin = 0; begin < word.size();) {
      const size_t extra = begin > 0 ? prefix_.size() : 0;
      if (begin > 0) rest = prefix_ + std::string(word.substr(begin));
      size_t end = rest.size();
      int32_t id = Vocabulary::kNone;
      while (end > extra) {
        id = vocabulary_.id_of(std::string_view(rest).substr(0, end));
        if (id != Vocabulary::kNone) break;
        do {
          --end;
        } while (end > extra && (static_cast<unsigned char>(rest[end]) & 0xC0u) == 0x80);
      }
      if (id == Vocabulary::kNone) return false;
      ids.push_back(id);
      begin += end - extra;
    }
    return true;
  }

  Vocabulary vocabulary_;
  std::string unk_token_, prefix_;
  int64_t most_chars_;
};

class WordLevel final : public SubwordModel {
 public:
  explicit WordLevel(const Component& part)
      : vocabulary_(part.at("vocab")), unk_token_(part.at("unk_token").text()) {
    part.allow({"vocab", "unk_token"});
  }

  void encode(std::string_view word, std::vector<int32_t>& ids) override {
    const int32_t id = vocabulary_.id_of(word);
    ids.push_back(id != Vocabulary::kNone ? id : unknown_of(vocabulary_, unk_token_));
  }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
  std::string unk_token_;
};

}  // namespace

std::unique_ptr<SubwordModel> make_word_piece(const Component& part) {
  return std::make_unique<WordPiece>(part);
}

std::unique_ptr<SubwordModel> make_word_level(const Component& part) {
  return std::make_unique<WordLevel>(part);
}

}  // namespace kuafu::tokenizer
