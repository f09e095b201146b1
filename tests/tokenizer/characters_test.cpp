// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/characters.h"

#include <gtest/gtest.h>

#include "kuafu/base/utf8.h"
#include "kuafu/tokenizer/byte_level.h"
#include "kuafu/tokenizer/lossy_utf8.h"

namespace kuafu::tokenizer {
namespace {

TEST(Characters, AreWrittenAndReadInEveryLength) {
  for (const char32_t c : {U'\0', U'a', U'\x7F', U'\x80', U'\u07FF', U'\u0800', U'\uFFFD',
                           U'\U00010000', U'\U0010FFFF'}) {
    const std::string bytes = "x" + to_utf8(c);
    size_t at = 1;
    EXPECT_EQ(next_char(bytes, at), c);
    EXPECT_EQ(at, bytes.size());
    EXPECT_EQ(char_before(bytes, bytes.size()), c);
    EXPECT_EQ(char_bytes(bytes[1]), bytes.size() - 1);
    EXPECT_TRUE(is_utf8(bytes));
  }
  EXPECT_EQ(count_chars("aé世👍"), 4u);
}

TEST(Characters, HaveTheKindsOfTheirCategories) {
  EXPECT_TRUE(is_letter(U'ß') && is_letter(U'世') && !is_letter(U'_') && !is_letter(U'1'));
  EXPECT_TRUE(is_number(U'½') && is_number(U'٣') && !is_number(U'a'));
  EXPECT_TRUE(is_space(U'\u3000') && is_space(U'\x85') && !is_space(U'\u200B'));
  EXPECT_TRUE(is_punctuation(U'$') && is_punctuation(U'。') && !is_punctuation(U'€'));
  EXPECT_TRUE(is_word(U'_') && is_word(U'\u0301') && is_word(U'\u24B6') && !is_word(U'½'));
  EXPECT_TRUE(is_control(U'\u200D') && is_control(U'\uE000') && !is_control(U'a'));
  EXPECT_TRUE(is_mark(U'\u0301') && is_nonspacing(U'\u0301') && !is_nonspacing(U'\u0903'));
}

TEST(Characters, YoungerThanThePackagesTablesAreNotAssigned) {
  EXPECT_FALSE(is_punctuation(U'\u2E4F'));                // Unicode 12
  EXPECT_FALSE(is_mark(U'\u0898'));                       // 14
  EXPECT_FALSE(is_control(U'\u0890'));                    // 14
  EXPECT_EQ(normal_form("㋿", NormalForm::kKC), "㋿");  // 12.1
}

TEST(Characters, HaveLowerCasesOfOneOrTwoCharacters) {
  const auto lower = [](char32_t c) {
    std::string out;
    append_lower(out, c);
    return out;
  };
  EXPECT_EQ(lower(U'A'), "a");
  EXPECT_EQ(lower(U'Σ'), "σ");
  EXPECT_EQ(lower(U'İ'), "i\u0307");
  EXPECT_EQ(lower(U'ß'), "ß");
}

TEST(Characters, HaveNormalForms) {
  EXPECT_EQ(normal_form("e\u0301", NormalForm::kC), "é");
  EXPECT_EQ(normal_form("é", NormalForm::kD), "e\u0301");
  EXPECT_EQ(normal_form("ﬁ½", NormalForm::kKC), "fi1⁄2");
  EXPECT_EQ(normal_form("한", NormalForm::kKD), "\u1112\u1161\u11AB");
  EXPECT_EQ(normal_form("a\u0301\u0323", NormalForm::kD), "a\u0323\u0301");
}

TEST(Characters, JoinGraphemes) {
  EXPECT_EQ(grapheme_bytes("e\u0301x"), 3u);
  EXPECT_EQ(grapheme_bytes("👨‍👩‍👧 x"), std::string("👨‍👩‍👧").size());
  EXPECT_EQ(grapheme_bytes("\r\nx"), 2u);
}

TEST(LossyUtf8, ReplacesEachLongestPartOnce) {
  EXPECT_EQ(lossy_utf8("a\xE4\xB8z"), "a\uFFFDz");
  EXPECT_EQ(lossy_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(lossy_utf8("\xF0\x9F\x91"), "\uFFFD");
  EXPECT_EQ(lossy_utf8("\xC0\x80ok"), "\uFFFD\uFFFDok");
}

TEST(ByteLevel, GivesEveryByteACharacterAndBack) {
  std::string all, chars, back;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  append_byte_chars(chars, all);
  EXPECT_EQ(count_chars(chars), 256u);
  EXPECT_TRUE(append_char_bytes(back, chars));
  EXPECT_EQ(back, all);
  EXPECT_FALSE(append_char_bytes(back, "世"));
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (const Span& span : gpt2_spans(text)) {
    words.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return words;
}

TEST(ByteLevel, SplitsAsGpt2Does) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words_of("I'll go  home!! 12a"),
            (Words{"I", "'ll", " go", " ", " home", "!!", " 12", "a"}));
  EXPECT_EQ(words_of("a \n\n b  "), (Words{"a", " \n\n", " b", "  "}));
  EXPECT_EQ(words_of("x\u00A0\u3000y"), (Words{"x", "\u00A0", "\u3000", "y"}));
  EXPECT_EQ(words_of("'S 'r"), (Words{"'", "S", " '", "r"}));
  EXPECT_EQ(words_of("\t.\t"), (Words{"\t", ".", "\t"}));
}

}  // namespace
}  // namespace kuafu::tokenizer
