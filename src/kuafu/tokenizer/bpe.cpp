// SPDX-License-Identifier: Apache-2.0
//
// Byte pair encoding: a word is its characters, and neighbours are merged by a list of ranks.

#include <array>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/tokenizer/bpe_merges.h"
#include "kuafu/tokenizer/characters.h"
#include "kuafu/tokenizer/subword_model.h"

namespace kuafu::tokenizer {
namespace {

/// "left right" or ["left", "right"].
std::pair<std::string, std::string> pair_from(const Component& part) {
  constexpr const char* kAllowed = R"("left right" or ["left", "right"])";
  if (part.value().is_array()) {
    if (part.value().size() != 2) part.refuse(kAllowed);
    const std::vector<Component> both = part.elements();
    return {both[0].text(), both[1].text()};
  }
  const std::string words = part.value().is_string() ? part.text() : std::string();
  const size_t space = words.find(' ');
  if (space == std::string::npos || words.find(' ', space + 1) != std::string::npos) {
    part.refuse(kAllowed);
  }
  return {words.substr(0, space), words.substr(space + 1)};
}

/// Words that were encoded before, with their tokens one after the other.
class WordCache {
 public:
  /// Appends the tokens of a word that is known.
  bool append(std::string_view word, std::vector<int32_t>& ids) const {
    const auto found = words_.find(word);
    if (found == words_.end()) return false;
    const auto [begin, count] = found->second;
    ids.insert(ids.end(), tokens_.begin() + begin, tokens_.begin() + begin + count);
    return true;
  }

  void keep(std::string_view word, const std::vector<int32_t>& ids) {
    constexpr size_t kMostWords = 1 << 17, kLongest = 256;
    if (word.size() > kLongest || words_.size() >= kMostWords) return;
    words_.emplace(
        word, std::pair(static_cast<int32_t>(tokens_.size()), static_cast<int32_t>(ids.size())));
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  }

 private:
  TextMap<std::pair<int32_t, int32_t>> words_;
  std::vector<int32_t> tokens_;
};

class Bpe final : public SubwordModel {
 public:
  explicit Bpe(const Component& part);

  void encode(std::string_view word, std::vector<int32_t>& ids) override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  void read_merges(const Component& part);
  void begin_with_chars(std::string_view word);
  int32_t unknown() const;

  Vocabulary vocabulary_;
  BpeMerges merges_;
  std::string prefix_, suffix_;  ///< of what goes on, of what ends a word
  std::optional<std::string> unk_token_;
  bool fuses_unk_ = false, falls_to_bytes_ = false, ignores_merges_ = false;
  std::array<int32_t, 256> bytes_ = {};  ///< their tokens
  WordCache cache_;
  std::vector<int32_t> word_;  ///< tokens of the word at hand
};

Bpe::Bpe(const Component& part) {
  part.allow({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (part.has("dropout") && part.at("dropout").number() != 0) {
    part.at("dropout").refuse("null: what is left out by chance is no text's tokens");
  }
  vocabulary_ = Vocabulary(part.at("vocab"));
  unk_token_ = part.text("unk_token");
  prefix_ = part.text("continuing_subword_prefix").value_or("");
  suffix_ = part.text("end_of_word_suffix").value_or("");
  fuses_unk_ = part.boolean("fuse_unk", false);
  falls_to_bytes_ = part.boolean("byte_fallback", false);
  ignores_merges_ = part.boolean("ignore_merges", false);
  for (size_t byte = 0; byte < 256; ++byte) {
    bytes_[byte] = vocabulary_.id_of(byte_token(static_cast<unsigned char>(byte)));
  }
  read_merges(part.at("merges"));
}

void Bpe::read_merges(const Component& part) {
  uint32_t rank = 0;
  for (const Component& element : part.elements()) {
    const bool is_version = element.value().is_string() &&
                            element.value().get_ref<const std::string&>().starts_with("#version");
    if (is_version) continue;
    const auto [left, right] = pair_from(element);
    if (right.size() < prefix_.size()) {
      element.refuse(text("a right side that begins with ", in_quotes(prefix_)));
    }
    const std::string merged = left + right.substr(prefix_.size());
    int32_t ids[3] = {};
    const std::string* const tokens[] = {&left, &right, &merged};
    for (size_t i = 0; i < 3; ++i) {
      ids[i] = vocabulary_.id_of(*tokens[i]);
      if (ids[i] != Vocabulary::kNone) continue;
      element.fail(text(" needs the token ", in_quotes(*tokens[i]), ", which model.vocab lacks"));
    }
    merges_.add(ids[0], ids[1], rank++, ids[2]);
  }
}

int32_t Bpe::unknown() const {
  const int32_t id = vocabulary_.id_of(*unk_token_);
  KUAFU_REQUIRE(id != Vocabulary::kNone, "the text has a character that the tokenizer lacks, and ",
                "model.vocab lacks model.unk_token, ", in_quotes(*unk_token_));
  return id;
}

/// The tokens of the characters. One that is unknown, or a run of them, follows when the next that
/// is known comes: behind tokens of bytes that stand between.
void Bpe::begin_with_chars(std::string_view word) {
  word_.clear();
  int32_t pending = Vocabulary::kNone;
  std::string symbol;
  for (size_t at = 0; at < word.size();) {
    const std::string_view c = word.substr(at, char_bytes(word[at]));
    const bool is_first = at == 0;
    at += c.size();
    std::string_view looked_up = c;
    if (!prefix_.empty() || !suffix_.empty()) {
      symbol = text(is_first ? "" : prefix_, c, at == word.size() ? suffix_ : "");
      looked_up = symbol;
    }
    const int32_t id = vocabulary_.id_of(looked_up);
    if (id != Vocabulary::kNone) {
      if (pending != Vocabulary::kNone) word_.push_back(pending);
      pending = Vocabulary::kNone;
      word_.push_back(id);
      continue;
    }
    bool has_bytes = falls_to_bytes_;
    for (const char byte : looked_up) {
      has_bytes = has_bytes && bytes_[static_cast<unsigned char>(byte)] != Vocabulary::kNone;
    }
    if (has_bytes) {
      for (const char byte : looked_up) word_.push_back(bytes_[static_cast<unsigned char>(byte)]);
    } else if (unk_token_) {
      if (pending != Vocabulary::kNone && !fuses_unk_) word_.push_back(pending);
      pending = unknown();
    }
  }
  if (pending != Vocabulary::kNone) word_.push_back(pending);
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) {
  if (ignores_merges_) {
    const int32_t whole = vocabulary_.id_of(word);
    if (whole != Vocabulary::kNone) return ids.push_back(whole);
  }
  if (cache_.append(word, ids)) return;
  begin_with_chars(word);
  merges_.apply(word_);
  cache_.keep(word, word_);
  ids.insert(ids.end(), word_.begin(), word_.end());
}

}  // namespace

std::unique_ptr<SubwordModel> make_bpe(const Component& part) {
  return std::make_unique<Bpe>(part);
}

}  // namespace kuafu::tokenizer
