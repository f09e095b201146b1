// SPDX-License-Identifier: Apache-2.0
#include "kuafu/generation/text_stream.h"

#include <gtest/gtest.h>

#include "kuafu/base/utf8.h"

namespace kuafu {
namespace {

/// What is told of a text that comes byte by byte, with bars between.
std::string told_by_bytes(const std::string& bytes, std::vector<std::string> stops = {}) {
  TextStream stream(std::move(stops));
  std::string all;
  for (size_t n = 1; n <= bytes.size(); ++n) {
    const std::string more = stream.add(as_utf8(bytes.substr(0, n)));
    EXPECT_TRUE(is_utf8(more));
    if (!more.empty()) all += more + "|";
  }
  const std::string rest = stream.finish();
  return all + rest;
}

TEST(TextStream, TellsWholeCharactersAtOnce) {
  EXPECT_EQ(told_by_bytes("a\xC3\xA9z"), "a|\xC3\xA9|z|");
  EXPECT_EQ(told_by_bytes("\xF0\x9F\x98\x80!"), "\xF0\x9F\x98\x80|!|");
}

TEST(TextStream, TellsBytesThatAreNoCharacterWhenTheyCanBeNone) {
  EXPECT_EQ(told_by_bytes("a\xC3"), "a|\xEF\xBF\xBD");
  EXPECT_EQ(told_by_bytes("\xC3("), "\xEF\xBF\xBD(|");
}

TEST(TextStream, EndsBeforeAStopStringAndTellsNoPartOfIt) {
  EXPECT_EQ(told_by_bytes("one. two", {". "}), "o|n|e|");
  EXPECT_EQ(told_by_bytes("aab", {"ab"}), "a|");
  EXPECT_EQ(told_by_bytes("xabcy", {"abd", "bcy"}), "x|a|");
  EXPECT_EQ(told_by_bytes("\xC3\xA9\xC3\xA8", {"\xC3\xA8"}), "\xC3\xA9|");
}

// Of a character that is not whole yet U+FFFD stands there for a while.
TEST(TextStream, TakesNoUnfinishedCharacterForAStopString) {
  EXPECT_EQ(told_by_bytes("\xE8\xA0\x98!", {"\xEF\xBF\xBD"}), "\xE8\xA0\x98|!|");
  EXPECT_EQ(told_by_bytes("a\xE8!", {"\xEF\xBF\xBD"}), "a|");
  EXPECT_EQ(told_by_bytes("a\xE8", {"\xEF\xBF\xBD"}), "a|");
}

TEST(TextStream, TellsWhatOnlyLookedLikeAStopString) {
  EXPECT_EQ(told_by_bytes("abx", {"abc"}), "abx|");
  EXPECT_EQ(told_by_bytes("xab", {"abc"}), "x|ab");
}

TEST(TextStream, OfTwoStopStringsTakesTheFirst) {
  TextStream stream({"yz", "b"});
  EXPECT_EQ(stream.add("abxyz"), "a");
  EXPECT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.add("abxyz more"), "");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.told(), "a");
}

}  // namespace
}  // namespace kuafu
