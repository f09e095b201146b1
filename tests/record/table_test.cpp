// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/table.h"

#include <gtest/gtest.h>

#include <limits>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

TEST(Table, AlignsColumnsToTheirWidestCell) {
  Table table({{"case"}, {"ms", Table::Align::kRight}});
  table.add({"a", "10.5"});
  table.add({"long name", "3"});
  EXPECT_EQ(table.str(),
            "case         ms\n"
            "---------  ----\n"
            "a          10.5\n"
            "long name     3\n");
}

TEST(Table, GoesOnInFurtherLinesWhereItIsTooWide) {
  Table table({{"key"}, {"meaning"}});
  table.add({"a.b", "what the first of all of them is about"});
  table.add({"c", "short"});
  EXPECT_EQ(table.str(30),
            "key  meaning\n"
            "---  -------------------------\n"
            "a.b  what the first of all of\n"
            "     them is about\n"
            "c    short\n");
  EXPECT_EQ(table.str(60), table.str());
}

TEST(Table, TakesFromTheWidestColumnButNeverFromAWord) {
  Table table({{"key"}, {"type"}, {"meaning"}});
  table.add({"a-key-of-one-word-that-is-long", "either this or that or else another", "short"});
  EXPECT_EQ(table.str(66),
            "key                             type                       meaning\n"
            "------------------------------  -------------------------  -------\n"
            "a-key-of-one-word-that-is-long  either this or that or     short\n"
            "                                else another\n");
}

TEST(Table, RefusesARowOfAnotherWidth) {
  Table table({{"one"}, {"two"}});
  EXPECT_THROW(table.add({"alone"}), InternalError);
}

TEST(HumanNumber, KeepsTheDigitsAskedFor) {
  EXPECT_EQ(human_number(0.0123456, 3), "0.0123");
  EXPECT_EQ(human_number(123456.0, 3), "123456");
  EXPECT_EQ(human_number(-2.5, 3), "-2.50");
  EXPECT_EQ(human_number(0, 3), "0");
  EXPECT_EQ(human_number(1.5e-9, 3), "1.50e-09");
  EXPECT_EQ(human_number(std::numeric_limits<double>::infinity(), 3), "inf");
}

}  // namespace
}  // namespace kuafu
