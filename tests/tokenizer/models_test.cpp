// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/tokenizer/tiny.h"

namespace kuafu::test {
namespace {

Json bpe(const Json& vocab, const Json& merges, const Json& more = Json::object()) {
  Json model = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  model.update(more);
  return file_of(model);
}

const Json kLetters = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}, {"abc", 5}};

TEST(Bpe, MergesTheLowestRankFirst) {
  EXPECT_EQ(ids_of(bpe(kLetters, {"b c", "a b"}), "abc"), (Ids{0, 4}));
  EXPECT_EQ(ids_of(bpe(kLetters, {"a b", "b c", "ab c"}), "abcab"), (Ids{5, 3}));
}

TEST(Bpe, ReadsMergesInBothSpellings) {
  EXPECT_EQ(ids_of(bpe(kLetters, {"#version: 0.2", "a b"}), "ab"), Ids{3});
  EXPECT_EQ(ids_of(bpe(kLetters, Json::array({Json::array({"a", "b"})})), "ab"), Ids{3});
}

TEST(Bpe, TakesAWholeWordWhereMergesAreIgnored) {
  EXPECT_EQ(ids_of(bpe(kLetters, Json::array(), {{"ignore_merges", true}}), "abc"), Ids{5});
}

TEST(Bpe, HasOneUnknownTokenForARunIfTheyAreFused) {
  const Json vocab = {{"a", 0}, {"?", 1}};
  const auto ids = [&](bool is_fused) {
    return ids_of(bpe(vocab, Json::array(), {{"unk_token", "?"}, {"fuse_unk", is_fused}}), "xya");
  };
  EXPECT_EQ(ids(false), (Ids{1, 1, 0}));
  EXPECT_EQ(ids(true), (Ids{1, 0}));
  EXPECT_EQ(ids_of(bpe(vocab, Json::array()), "xya"), Ids{0});
}

// What a caller of transformers makes batches with says nothing of a text's own tokens.
TEST(Files, KeepTheLengthOfATextWhateverTheySayOfBatches) {
  const Json plain = file_of(word_level({"a", "b"}), {{"pre_tokenizer", {{"type", "Whitespace"}}}});
  Json cut = plain;
  cut["truncation"] = {{"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  cut["padding"] = {{"strategy", {{"Fixed", 128}}}, {"pad_id", 0}};
  const std::string words = "a b a b a";  // five tokens
  EXPECT_EQ(ids_of(cut, words), ids_of(plain, words));
  EXPECT_EQ(ids_of(cut, words).size(), 5);
}

TEST(Bpe, FallsBackToBytes) {
  const Json vocab = {{"a", 0}, {"<0xC3>", 1}, {"<0xA9>", 2}, {"?", 3}};
  EXPECT_EQ(ids_of(bpe(vocab, Json::array(), {{"unk_token", "?"}, {"byte_fallback", true}}), "éaß"),
            (Ids{1, 2, 0, 3}));
}

TEST(Bpe, MarksWhatGoesOnAndWhatEnds) {
  const Json prefixed = {{"a", 0}, {"##b", 1}, {"ab", 2}};
  EXPECT_EQ(ids_of(bpe(prefixed, {"a ##b"}, {{"continuing_subword_prefix", "##"}}), "ab"), Ids{2});
  const Json ended = {{"a", 0}, {"b</w>", 1}, {"ab</w>", 2}};
  EXPECT_EQ(ids_of(bpe(ended, {"a b</w>"}, {{"end_of_word_suffix", "</w>"}}), "ab"), Ids{2});
}

TEST(Bpe, TakesALongRunOfOneLetter) {
  const Json vocab = {{"a", 0}, {"aa", 1}, {"aaaa", 2}};
  EXPECT_EQ(ids_of(bpe(vocab, {"a a", "aa aa"}), std::string(200001, 'a')).size(), 50001u);
}

TEST(WordPiece, TakesTheLongestTokenEachTime) {
  const Json file = file_of({{"type", "WordPiece"},
                             {"vocab", {{"[UNK]", 0}, {"un", 1}, {"##aff", 2}, {"##able", 3}}},
                             {"unk_token", "[UNK]"},
                             {"continuing_subword_prefix", "##"},
                             {"max_input_chars_per_word", 10}});
  EXPECT_EQ(ids_of(file, "unaffable"), (Ids{1, 2, 3}));
  EXPECT_EQ(ids_of(file, "unaffx"), Ids{0});
  EXPECT_EQ(ids_of(file, "unaffableun"), Ids{0});  // too many characters
}

/// `vocab`: JSON, because lists of pairs are objects to Json's constructor.
Json unigram(const std::string& vocab, const Json& more) {
  Json model = {{"type", "Unigram"}, {"vocab", Json::parse(vocab)}};
  model.update(more);
  return file_of(model);
}

TEST(Unigram, FindsTheLargestSumOfScores) {
  const char* const vocab = R"([["?", 0], ["a", 0], ["b", 0], ["c", 0], ["d", 0], ["cd", 1],
                                ["ab", 2], ["abc", 5], ["abcd", 10]])";
  EXPECT_EQ(ids_of(unigram(vocab, {{"unk_id", 0}}), "abcdacdxx"), (Ids{8, 1, 5, 0}));
}

TEST(Unigram, FallsBackToBytes) {
  const char* const vocab = R"([["?", 0], ["a", -1], ["<0xC3>", -9], ["<0xA9>", -9]])";
  EXPECT_EQ(ids_of(unigram(vocab, {{"unk_id", 0}, {"byte_fallback", true}}), "aéaß"),
            (Ids{1, 2, 3, 1, 0}));
}

TEST(Models, WithoutAnUnknownTokenRefuseTheText) {
  const Json files[] = {
      unigram(R"([["a", -1]])", Json::object()),
      bpe({{"a", 0}}, Json::array(), {{"unk_token", "?"}}),
      file_of({{"type", "WordLevel"}, {"vocab", {{"a", 0}}}, {"unk_token", "?"}})};
  for (const Json& file : files) EXPECT_THROW(ids_of(file, "b"), ConfigError) << file;
}

Json added(const std::string& content, const Json& more = Json::object()) {
  Json token = {{"id", 0},         {"content", content}, {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", true}, {"special", false}};
  token.update(more);
  return token;
}

TEST(AddedTokens, AreCutOutFirstAndLongest) {
  const Json file = file_of(word_level({"x", "y"}),
                            {{"added_tokens", {added("<a>"), added("<a><b>"), added("x")}}});
  EXPECT_EQ(ids_of(file, "x<a><b>y<a>"), (Ids{1, 4, 2, 3}));  // "x" keeps the id of the model
}

TEST(AddedTokens, StripAndStandAloneAsToldTo) {
  const Json strips = {added("<l>", {{"lstrip", true}}), added("<r>", {{"rstrip", true}})};
  const Json file = file_of(word_level({"x", " y"}), {{"added_tokens", strips}});
  EXPECT_EQ(ids_of(file, "x  <l> y"), (Ids{1, 3, 2}));
  EXPECT_EQ(ids_of(file, " y<r>  x"), (Ids{2, 4, 1}));
  const Json alone = file_of(word_level({"tom", "x", " "}),
                             {{"added_tokens", {added("om", {{"single_word", true}})}}});
  EXPECT_EQ(ids_of(alone, "tom"), Ids{1});
  EXPECT_EQ(ids_of(alone, "x om"), (Ids{0, 4}));
}

TEST(AddedTokens, AreLookedForInTheNormalizedText) {
  const Json parts = {
      {"normalizer", {{"type", "Lowercase"}}},
      {"added_tokens", {added("Day"), added("[D]", {{"normalized", false}, {"special", true}})}}};
  Tokenizer tokenizer = tokenizer_of(file_of(word_level({"x"}), parts));
  EXPECT_EQ(tokenizer.encode("xDAY[D][d]"), (Ids{1, 2, 3, 0}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 3, 1}), "day x");
  EXPECT_EQ(tokenizer.decode(Ids{2, 3, 1}, SpecialTokens::kWith), "day [D] x");
}

}  // namespace
}  // namespace kuafu::test
