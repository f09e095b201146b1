// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/base/utf8.h"
#include "tests/fuzz/mutate.h"
#include "tests/tokenizer/tiny.h"

namespace kuafu::test {
namespace {

void expect_refused(const Json& file, const std::vector<std::string>& words) {
  const std::string message = refusal_of(file);
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no " << word << " in: " << message;
  }
}

TEST(Refusals, NameFileMemberAndWhatIsAllowed) {
  expect_refused(file_of({{"type", "BEP"}}),
                 {"t.json", "model.type is \"BEP\"", "allowed: BPE, ", "did you mean \"BPE\"?"});
  expect_refused(file_of(word_level({}), {{"pre_tokenizer", {{"type", "ByteLevl"}}}}),
                 {"pre_tokenizer.type", "did you mean \"ByteLevel\"?"});
  expect_refused(file_of(word_level({}), {{"decoders", 1}}), {"decoders", "\"decoder\""});
  for (const Json& broken : {Json(5), Json("x"), Json{{"max_length", -3}}, Json{{"max_len", 4}}}) {
    expect_refused(file_of(word_level({}), {{"truncation", broken}}), {"truncation"});
  }
  expect_refused(file_of(word_level({}), {{"padding", 5}}), {"padding is 5"});
  expect_refused(file_of(word_level({}), {{"padding", {{"pad_id", "a"}}}}), {"padding.pad_id"});
  expect_refused({{"version", "2.0"}, {"model", word_level({})}}, {"version", "1.0"});
  expect_refused({{"version", "1.0"}}, {"has no member model"});
  expect_refused(file_of({{"type", "BPE"}, {"vocab", {{"a", -1}}}, {"merges", Json::array()}}),
                 {"model.vocab.a is -1", "whole number from 0"});
  expect_refused(
      file_of({{"type", "BPE"}, {"vocab", {{"a", 1}, {"b", 1}}}, {"merges", Json::array()}}),
      {"model.vocab", "gives id 1"});
  expect_refused(file_of({{"type", "BPE"}, {"vocab", {{"a", 1}}}, {"merges", {"a b"}}}),
                 {"model.merges.0", "\"b\""});
  expect_refused(file_of({{"type", "BPE"}, {"vocab", {{"a", 1}}}, {"merges", {"a  a"}}}),
                 {"model.merges.0 is \"a  a\""});
  expect_refused(
      file_of(
          {{"type", "BPE"}, {"vocab", {{"a", 1}}}, {"merges", Json::array()}, {"dropout", 0.1}}),
      {"model.dropout is 0.1"});
  expect_refused(
      file_of(
          word_level({}),
          {{"normalizer", {{"type", "Replace"}, {"content", ""}, {"pattern", {{"Regex", "(a"}}}}}}),
      {"normalizer.pattern.Regex", "parenthes"});
  expect_refused(
      file_of({{"type", "Unigram"}, {"vocab", Json::parse(R"([["a", 0.5]])")}, {"unk_id", 7}}),
      {"model.unk_id is 7"});
}

TEST(Refusals, OfFilesThatAreNone) {
  for (const char* bytes : {"", "[]", "{", "{\"model\":\"\xFF\"}", "12", "null"}) {
    EXPECT_THROW(Tokenizer::parse(bytes, "t.json"), ConfigError) << bytes;
  }
  EXPECT_THROW(Tokenizer::parse(std::string(100000, '['), "t.json"), ConfigError);
  EXPECT_THROW(Tokenizer::load("/no/such.json"), ConfigError);
}

TEST(Refusals, OfTextThatIsNoUtf8NameTheByte) {
  Tokenizer tokenizer = tokenizer_of(file_of(word_level({"a"})));
  try {
    tokenizer.encode("aé\xFFz");
    FAIL() << "taken";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("its byte 3"), std::string::npos) << error.what();
  }
  EXPECT_THROW(tokenizer.encode("\xED\xA0\x80"), ConfigError);
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_THROW(tokenizer.decode(Ids{99}), ConfigError);
  EXPECT_THROW(tokenizer.decode(Ids{-1}), ConfigError);
}

/// Files that together have most parts.
std::vector<std::string> valid_files() {
  const Json token = {{"id", 0},        {"content", "<s>"}, {"single_word", true},
                      {"lstrip", true}, {"rstrip", true},   {"normalized", true},
                      {"special", true}};
  const Json bpe = {
      {"type", "BPE"},         {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"<0x41>", 3}, {"?", 4}}},
      {"merges", {"a b"}},     {"unk_token", "?"},
      {"byte_fallback", true}, {"fuse_unk", true}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", R"(\s+(?!\S)|[^\s\p{L}]+|\p{L}{1,3})"}}},
                      {"behavior", "MergedWithNext"},
                      {"invert", false}};
  const Json steps = {
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "NFKC"}},
          {{"type", "BertNormalizer"},
           {"clean_text", true},
           {"handle_chinese_chars", true},
           {"lowercase", true}}}}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split}}}},
      {"post_processor", {{"type", "BertProcessing"}, {"cls", {"a", 0}}, {"sep", {"b", 1}}}},
      {"decoder", {{"type", "ByteFallback"}}},
      {"added_tokens", {token}}};
  const Json unigram = {
      {"type", "Unigram"},
      {"unk_id", 0},
      {"vocab", Json::parse(R"([["?", 0], ["▁", -1.5], ["▁a", -2], ["b", -3]])")}};
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  return {file_of(bpe, steps).dump(),
          file_of(unigram, {{"pre_tokenizer", metaspace}, {"decoder", metaspace}}).dump(),
          file_of(word_level({"x", "é"}), {{"pre_tokenizer", {{"type", "Whitespace"}}}}).dump()};
}

TEST(Refusals, OfChangedFilesAreErrorsOrValues) {
  const std::vector<std::string> valid = valid_files();
  int64_t values = 0, refusals = 0;
  for (uint64_t number = 0; number < 4000; ++number) {
    const std::string bytes =
        number < valid.size() ? valid[number] : fuzz::mutated(valid, 7, number);
    try {
      Tokenizer tokenizer = Tokenizer::parse(bytes, "t.json");
      ++values;
      const Ids ids = tokenizer.encode("<s> Ab é世\u0301 x \u00A0", SpecialTokens::kWith);
      EXPECT_TRUE(is_utf8(tokenizer.decode(ids, SpecialTokens::kWith)));
    } catch (const ConfigError& error) {
      EXPECT_TRUE(is_utf8(error.what()));
      EXPECT_LT(std::string(error.what()).size(), 1000u) << error.what();
      ++refusals;
    }
  }
  EXPECT_GT(values, 100);
  EXPECT_GT(refusals, 100);
}

}  // namespace
}  // namespace kuafu::test
