// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/regex.h"

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"

namespace kuafu::tokenizer {
namespace {

/// The parts of a text, matches in brackets.
std::string marked(const std::string& pattern, const std::string& text) {
  std::string out;
  for (const Span& span : Regex(pattern).find(text)) {
    const std::string part = text.substr(span.begin, span.end - span.begin);
    out += span.is_match ? "[" + part + "]" : part;
  }
  return out;
}

TEST(Regex, FindsLeftmostMatchesAndWhatLiesBetween) {
  EXPECT_EQ(marked(R"(\s+(?!\S)|\s+)", "a  b "), "a[ ][ ]b[ ]");
  EXPECT_EQ(marked(R"(\p{N}{1,3})", "12345"), "[123][45]");
  EXPECT_EQ(marked(R"((?i:'s|'t))", "it'S"), "it['S]");
  EXPECT_EQ(marked("x", ""), "");
}

TEST(Regex, MatchesNothingBehindAMatchOnce) { EXPECT_EQ(marked("b*", "abc"), "[]a[b]c[]"); }

TEST(Regex, HasOnigurumasClasses) {
  EXPECT_EQ(marked(R"(\s)", "\u180E\u0085"), "\u180E[\u0085]");  // the first is none any more
  EXPECT_EQ(marked(R"([^\S]+)", "a \tb"), "a[ \t]b");
  EXPECT_EQ(marked(R"(\w+)", "é\u0301½_ ①"), "[é\u0301½_] ①");
  EXPECT_EQ(marked(R"([\w]+)", "é½"), "[é]½");
  EXPECT_EQ(marked(R"(\d+)", "1٣½"), "[1٣]½");
  EXPECT_EQ(marked(R"(\v)", "\n\x0B"), "\n[\x0B]");
  EXPECT_EQ(marked(R"(\bab\b)", "ab abc"), "[ab] abc");
  EXPECT_EQ(marked(R"(a{,2})", "aaa"), "[aa][a]");
  EXPECT_EQ(marked(R"(\u4E16)", "世"), "[世]");
  EXPECT_EQ(marked("^b$", "a\nb\nc"), "a\n[b]\nc");
}

TEST(Regex, RefusesWhatIsReadInAnotherWay) {
  for (const char* pattern : {R"(\h)", R"((?m:a))", "[a&&b]", "[a[b]]", "(*FAIL)", "a{2}?", "a{2}+",
                              R"(\Ga)", R"([\W])", R"(\1)", "[", "a\\"}) {
    EXPECT_THROW(Regex{pattern}, ConfigError) << pattern;
  }
  EXPECT_THROW(Regex("(a"), ConfigError);
}

TEST(Regex, GivesUpWithAnErrorWhereItWouldTakeForever) {
  const std::string text(4000, 'a');
  EXPECT_THROW(Regex("(a|a)*b|(a+)+c").find(text), ConfigError);
}

TEST(Regex, TakesALongRunOfSpaces) {
  const std::string text(1 << 20, ' ');
  EXPECT_EQ(Regex(R"(\s+(?!\S)|\s+)").find(text).size(), 1u);
}

}  // namespace
}  // namespace kuafu::tokenizer
