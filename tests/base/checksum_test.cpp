// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/base/crc32.h"
#include "kuafu/base/utf8.h"

namespace kuafu {
namespace {

TEST(Crc32, IsTheOneOfZlib) {
  EXPECT_EQ(crc32(""), 0u);
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);  // the check value of the catalogue of CRCs
  EXPECT_EQ(crc32_digits("a"), "e8b7be43");
}

TEST(Utf8, FindsWhatIsNone) {
  for (const char* good : {"", "a", "\x7f", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xef\xbf\xbd", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
    EXPECT_EQ(as_utf8(good), good);
  }
  for (const char* bad :
       {"\xff", "\x80", "\xc3", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xc3(", "\xf0\x80\x80\x80"}) {
    EXPECT_FALSE(is_utf8(bad));
    EXPECT_TRUE(is_utf8(as_utf8(bad))) << as_utf8(bad);
  }
  EXPECT_EQ(as_utf8("a\xff"
                    "b"),
            "a\xef\xbf\xbd"
            "b");
}

TEST(Utf8, IsCutBetweenCharacters) {
  EXPECT_EQ(utf8_prefix("abc", 5), "abc");
  EXPECT_EQ(utf8_prefix("a\xc3\xa4", 2), "a");
  EXPECT_EQ(utf8_prefix("a\xc3\xa4", 3), "a\xc3\xa4");
  EXPECT_EQ(utf8_prefix("\xe2\x82\xac", 2), "");
}

}  // namespace
}  // namespace kuafu
