// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/base/names.h"
#include "kuafu/base/utf8.h"

namespace kuafu {
namespace {

TEST(Names, AreLettersDigitsAndTwoSignsWithin) {
  for (const std::string& name : {std::string("a"), std::string("1d-mine"),
                                  std::string("Two-Rings_2"), std::string(64, 'x')}) {
    EXPECT_TRUE(is_plain_name(name)) << name;
    EXPECT_EQ(plain_name_near(name), name);
  }
  for (const std::string& name :
       {std::string("a.b"), std::string("../a"), std::string("\xff"), std::string(),
        std::string(65, 'x'), std::string("_a"), std::string("-a"), std::string("a b"),
        std::string("a\n"), std::string("a\0b", 3), std::string("\xc3\xa4")}) {
    EXPECT_FALSE(is_plain_name(name)) << name;
    EXPECT_TRUE(is_plain_name(plain_name_near(name))) << plain_name_near(name);
    const std::string problem = problem_of_name(name);
    EXPECT_TRUE(is_utf8(problem)) << problem;
    EXPECT_LT(problem.size(), 400u) << problem;
    EXPECT_NE(problem.find("allowed: a letter or digit, then letters, digits, _ and -, at most 64"),
              std::string::npos)
        << problem;
  }
  EXPECT_EQ(plain_name_near("2.5D ring"), "2_5D_ring");
}

}  // namespace
}  // namespace kuafu
