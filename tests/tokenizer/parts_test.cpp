// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/tokenizer/tiny.h"

namespace kuafu::test {
namespace {

/// Ids of a text that is normalized, in a vocabulary of whole texts.
Ids normalized(const Json& normalizer, const std::string& text, const std::string& expected) {
  return ids_of(file_of(word_level({expected}), {{"normalizer", normalizer}}), text);
}

TEST(Normalizers, RewriteTheText) {
  const Ids equal = {1};
  EXPECT_EQ(normalized({{"type", "NFC"}}, "e\u0301", "é"), equal);
  EXPECT_EQ(normalized({{"type", "NFKD"}}, "ﬁ", "fi"), equal);
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "İA", "i\u0307a"), equal);
  EXPECT_EQ(normalized({{"type", "StripAccents"}}, "e\u0301", "e"), equal);
  EXPECT_EQ(
      normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, " a ", "a "),
      equal);
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "▁"}}, "a", "▁a"), equal);
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}},
                       "a b", "a▁b"),
            equal);
  EXPECT_EQ(normalized({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}},
                       "a   b", "a b"),
            equal);
  EXPECT_EQ(normalized({{"type", "Nmt"}}, "a\u200Bb\x01", "a b"), equal);
  EXPECT_EQ(normalized({{"type", "ByteLevel"}}, "é", "Ã©"), equal);
  EXPECT_EQ(normalized({{"type", "BertNormalizer"},
                        {"clean_text", true},
                        {"handle_chinese_chars", true},
                        {"strip_accents", nullptr},
                        {"lowercase", true}},
                       "É\t世\u200D", "e  世 "),
            equal);
  EXPECT_EQ(normalized({{"type", "Sequence"},
                        {"normalizers", {{{"type", "Lowercase"}}, {{"type", "NFD"}}}}},
                       "É", "e\u0301"),
            equal);
}

/// The double array of one rule, "A" becomes "b": children of the root at 1, of "A" at 2.
std::string rules_of_one_letter() {
  std::string bytes;
  const auto add = [&](uint32_t word) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(word >> (8 * i) & 0xFF);
  };
  const uint32_t at_a = 1 ^ 'A', at_text = at_a ^ 2;
  add(4 * 128);
  for (uint32_t i = 0; i < 128; ++i) {
    add(i == 0 ? 1u << 10 : i == at_a ? 2u << 10 | 1u << 8 | 'A' : i == at_text ? 1u << 31 : 0xFF);
  }
  return bytes + std::string("b\0", 2);
}

std::string to_base64(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    }
    for (int i = 3; i >= 0; --i) out += kDigits[bits >> (6 * i) & 63];
  }
  const size_t missing = (3 - bytes.size() % 3) % 3;
  return out.substr(0, out.size() - missing) + std::string(missing, '=');
}

TEST(Normalizers, TakeCompiledRules) {
  const std::string rules = rules_of_one_letter();
  const auto normalizer = [](const std::string& bytes) {
    return Json{{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(bytes)}};
  };
  EXPECT_EQ(normalized(normalizer(rules), "xA!", "xb!"), Ids{1});
  const Json cut = file_of(word_level({}), {{"normalizer", normalizer(rules.substr(0, 99))}});
  EXPECT_NE(refusal_of(cut).find("normalizer.precompiled_charsmap is no compiled rules"),
            std::string::npos);
}

/// The words that a pre-tokenizer makes of a text, each an id; those that it should make are 1, 2, ...
void expect_words(const Json& pre_tokenizer, const std::string& text,
                  const std::vector<std::string>& words) {
  Ids expected;
  std::vector<std::string> known;
  for (const std::string& word : words) {
    const auto found = std::find(known.begin(), known.end(), word);
    expected.push_back(static_cast<int32_t>(found - known.begin()) + 1);
    if (found == known.end()) known.push_back(word);
  }
  EXPECT_EQ(ids_of(file_of(word_level(known), {{"pre_tokenizer", pre_tokenizer}}), text), expected)
      << pre_tokenizer.dump() << " of " << text;
}

TEST(PreTokenizers, SplitTheText) {
  expect_words({{"type", "Whitespace"}}, "a-b c!", {"a", "-", "b", "c", "!"});
  expect_words({{"type", "WhitespaceSplit"}}, " a-b\u3000c", {"a-b", "c"});
  expect_words({{"type", "BertPreTokenizer"}}, "a$ b", {"a", "$", "b"});
  expect_words({{"type", "Digits"}, {"individual_digits", true}}, "a12", {"a", "1", "2"});
  expect_words({{"type", "Digits"}, {"individual_digits", false}}, "a12", {"a", "12"});
  expect_words({{"type", "Punctuation"}}, "a.,", {"a", ".", ","});
  expect_words({{"type", "CharDelimiterSplit"}, {"delimiter", "|"}}, "a|b", {"a", "b"});
  expect_words({{"type", "FixedLength"}, {"length", 2}}, "éab", {"éa", "b"});
  expect_words({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}, "a é",
               {"Ġa", "ĠÃ©"});
  expect_words(
      {{"type", "Sequence"},
       {"pretokenizers",
        {{{"type", "WhitespaceSplit"}}, {{"type", "Digits"}, {"individual_digits", false}}}}},
      "a1 b", {"a", "1", "b"});
}

TEST(PreTokenizers, DoWithADelimiterAsToldTo) {
  const auto split = [](const char* behavior) {
    return Json{{"type", "Split"},
                {"pattern", {{"String", "-"}}},
                {"behavior", behavior},
                {"invert", false}};
  };
  const std::string text = "the-final--countdown";
  expect_words(split("Removed"), text, {"the", "final", "countdown"});
  expect_words(split("Isolated"), text, {"the", "-", "final", "-", "-", "countdown"});
  expect_words(split("MergedWithPrevious"), text, {"the-", "final-", "-", "countdown"});
  expect_words(split("MergedWithNext"), text, {"the", "-final", "-", "-countdown"});
  expect_words(split("Contiguous"), text, {"the", "-", "final", "--", "countdown"});
}

TEST(PreTokenizers, PutAMetaspaceWhereTheSchemeSays) {
  const auto metaspace = [](const char* scheme, bool splits) {
    return Json{
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", splits}};
  };
  expect_words(metaspace("always", true), "a  b", {"▁a", "▁", "▁b"});
  expect_words(metaspace("never", true), "a b", {"a", "▁b"});
  expect_words(metaspace("first", false), "a b", {"▁a▁b"});
  const auto split_first = [&](const char* scheme) {
    return Json{{"type", "Sequence"},
                {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace(scheme, true)}}};
  };
  expect_words(split_first("first"), "a b", {"▁a", "b"});
  expect_words(split_first("first"), " a b", {"a", "b"});
  expect_words(split_first("always"), "a b", {"▁a", "▁b"});
}

std::string decoded(const Json& decoder, const std::vector<std::string>& tokens) {
  const Json file = file_of(word_level(tokens), {{"decoder", decoder}});
  const Tokenizer tokenizer = tokenizer_of(file);
  Ids ids;
  for (const std::string& token : tokens) ids.push_back(*tokenizer.id_of(token));
  return tokenizer.decode(ids);
}

TEST(Decoders, MakeTextOfTokens) {
  EXPECT_EQ(decoded({{"type", "ByteLevel"}}, {"Ã", "©Ġ", "世"}), "é 世");
  EXPECT_EQ(decoded({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}},
                    {"do", "##n", "n't", "."}),
            "donn't.");
  const Json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}};
  EXPECT_EQ(decoded(metaspace, {"▁a", "▁b"}), "a b");
  EXPECT_EQ(decoded({{"type", "BPEDecoder"}, {"suffix", "</w>"}}, {"a</w>", "b</w>"}), "a b");
  EXPECT_EQ(decoded({{"type", "ByteFallback"}}, {"<0xC3>", "<0xA9>", "x", "<0xFF>"}), "éx\uFFFD");
  EXPECT_EQ(decoded({{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}},
                    {"▁a", "▁b"}),
            "a b");
  EXPECT_EQ(
      decoded(
          {{"type", "CTC"}, {"pad_token", "<p>"}, {"word_delimiter_token", "|"}, {"cleanup", true}},
          {"a", "<p>", "|", "b"}),
      "a b");
}

TEST(PostProcessors, PutTokensAroundTheTextIfAsked) {
  const Json model = word_level({"a"});
  const Json parts[] = {{{"type", "TemplateProcessing"},
                         {"single",
                          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                           {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
                         {"pair", Json::array()},
                         {"special_tokens",
                          {{"<s>", {{"id", "<s>"}, {"ids", {8}}, {"tokens", {"<s>"}}}},
                           {"</s>", {{"id", "</s>"}, {"ids", {9}}, {"tokens", {"</s>"}}}}}}},
                        {{"type", "BertProcessing"}, {"cls", {"<s>", 8}}, {"sep", {"</s>", 9}}},
                        {{"type", "RobertaProcessing"},
                         {"cls", {"<s>", 8}},
                         {"sep", {"</s>", 9}},
                         {"trim_offsets", true},
                         {"add_prefix_space", true}}};
  for (const Json& part : parts) {
    Tokenizer tokenizer = tokenizer_of(file_of(model, {{"post_processor", part}}));
    EXPECT_EQ(tokenizer.encode("a", SpecialTokens::kWith), (Ids{8, 1, 9})) << part;
    EXPECT_EQ(tokenizer.encode("a"), Ids{1}) << part;
    EXPECT_EQ(tokenizer.vocab_size(), 10);
  }
}

}  // namespace
}  // namespace kuafu::test
