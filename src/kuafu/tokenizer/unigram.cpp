// SPDX-License-Identifier: Apache-2.0
//
// Unigram: of all ways to cut a word into tokens the one with the largest sum of scores (Viterbi).

#include <algorithm>
#include <array>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/tokenizer/byte_trie.h"
#include "kuafu/tokenizer/characters.h"
#include "kuafu/tokenizer/piece.h"
#include "kuafu/tokenizer/subword_model.h"

namespace kuafu::tokenizer {
namespace {

/// The best way to a byte of the word: its last token, and where that begins.
struct Best {
  static constexpr size_t kNowhere = std::numeric_limits<size_t>::max();

  double score = 0;
  size_t begin = kNowhere;
  int32_t id = 0;

  /// Of equal scores the first stays.
  void offer(double other, size_t from, int32_t token) {
    if (begin == kNowhere || other > score) *this = {other, from, token};
  }
};

class Unigram final : public SubwordModel {
 public:
  explicit Unigram(const Component& part);

  void encode(std::string_view word, std::vector<int32_t>& ids) override;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  /// What an unknown character costs beyond the least likely token.
  static constexpr double kUnknownPenalty = 10;

  int32_t unknown() const;
  void find_best(std::string_view word);
  void append_text(std::string_view part, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  ByteTrie trie_;
  std::vector<double> scores_;
  double least_score_ = std::numeric_limits<double>::infinity();
  int32_t unk_id_ = Vocabulary::kNone;
  bool falls_to_bytes_ = false;
  std::array<int32_t, 256> bytes_ = {};
  std::vector<Best> best_;   ///< of the word at hand, by its ends
  std::vector<Span> parts_;  ///< backwards
};

Unigram::Unigram(const Component& part) {
  part.allow({"unk_id", "vocab", "byte_fallback"});
  falls_to_bytes_ = part.boolean("byte_fallback", false);
  for (const Component& row : part.at("vocab").elements()) {
    if (!row.value().is_array() || row.value().size() != 2) row.refuse(R"(["token", score])");
    const std::vector<Component> both = row.elements();
    const std::string token = both[0].text();
    const auto id = static_cast<int32_t>(scores_.size());
    if (vocabulary_.id_of(token) != Vocabulary::kNone) {
      row.fail(text(" has the token ", in_quotes(token), ", which stands before it"));
    }
    vocabulary_.set(token, id);
    if (!token.empty()) trie_.add(token, id);
    scores_.push_back(both[1].number());
    least_score_ = std::min(least_score_, scores_.back());
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    bytes_[byte] = vocabulary_.id_of(byte_token(static_cast<unsigned char>(byte)));
  }
  if (!part.has("unk_id")) return;
  unk_id_ = part.at("unk_id").id();
  if (unk_id_ >= static_cast<int32_t>(scores_.size())) {
    part.at("unk_id").refuse(text("the id of one of its ", scores_.size(), " tokens"));
  }
}

int32_t Unigram::unknown() const {
  KUAFU_REQUIRE(unk_id_ != Vocabulary::kNone,
                "the text has a character that the tokenizer lacks, and it has no model.unk_id");
  return unk_id_;
}

void Unigram::find_best(std::string_view word) {
  best_.assign(word.size() + 1, Best{});
  for (size_t at = 0; at < word.size();) {
    const double here = best_[at].score;
    const size_t bytes = char_bytes(word[at]);
    bool has_single = false;
    trie_.each_prefix(word.substr(at), [&](size_t length, int32_t id) {
      best_[at + length].offer(scores_[static_cast<size_t>(id)] + here, at, id);
      has_single = has_single || length == bytes;
    });
    if (!has_single) {
      best_[at + bytes].offer(least_score_ - kUnknownPenalty + here, at, unknown());
    }
    at += bytes;
  }
}

/// Tokens of a part: itself, or its bytes, or the unknown one.
void Unigram::append_text(std::string_view part, std::vector<int32_t>& ids) const {
  const int32_t id = vocabulary_.id_of(part);
  if (id != Vocabulary::kNone) return ids.push_back(id);
  bool has_bytes = falls_to_bytes_;
  for (const char byte : part) {
    has_bytes = has_bytes && bytes_[static_cast<unsigned char>(byte)] != Vocabulary::kNone;
  }
  if (!has_bytes) return ids.push_back(unknown());
  for (const char byte : part) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
}

/// Unknown parts that touch are one.
void Unigram::encode(std::string_view word, std::vector<int32_t>& ids) {
  find_best(word);
  parts_.clear();
  for (size_t end = word.size(); end > 0; end = best_[end].begin) {
    const bool is_unknown = best_[end].id == unk_id_;
    if (is_unknown && !parts_.empty() && parts_.back().is_match) {
      parts_.back().begin = best_[end].begin;
    } else {
      parts_.push_back({best_[end].begin, end, is_unknown});
    }
  }
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    append_text(word.substr(part->begin, part->end - part->begin), ids);
  }
}

}  // namespace

std::unique_ptr<SubwordModel> make_unigram(const Component& part) {
  return std::make_unique<Unigram>(part);
}

}  // namespace kuafu::tokenizer
