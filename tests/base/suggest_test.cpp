// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/suggest.h"

#include <gtest/gtest.h>

#include "kuafu/base/config.h"

namespace kuafu {
namespace {

TEST(EditDistance, CountsInsertDeleteReplaceAndSwap) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("layers", "layers"), 0);
  EXPECT_EQ(edit_distance("layrs", "layers"), 1);
  EXPECT_EQ(edit_distance("layerss", "layers"), 1);
  EXPECT_EQ(edit_distance("lazers", "layers"), 1);
  EXPECT_EQ(edit_distance("laeyrs", "layers"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, IgnoresCaseExceptBetweenEquals) {
  EXPECT_EQ(nearest("LAYERS", {"heads", "layers"}), "layers");
  EXPECT_EQ(nearest("Ab", {"aB", "ab", "Ab"}), "Ab");
}

TEST(Nearest, TakesTheFirstOfSeveralAndNothingOfNone) {
  EXPECT_EQ(nearest("x", {"a", "b"}), "a");
  EXPECT_EQ(nearest("poly", {"step", "polynomial"}), "polynomial");
  EXPECT_EQ(nearest("lay", {"lag", "layers"}), "lag");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(DidYouMean, AsksForNothingThatIsFar) {
  EXPECT_EQ(did_you_mean("laeyrs", {"heads", "layers"}), "; did you mean \"layers\"?");
  EXPECT_EQ(did_you_mean("LAYERS", {"layers"}), "; did you mean \"layers\"?");
  EXPECT_EQ(did_you_mean("ring", {"ring, 4 ranks, batch 16"}),
            "; did you mean \"ring, 4 ranks, batch 16\"?");
  EXPECT_EQ(did_you_mean("--stps", {"--steps"}), "; did you mean --steps?");
  EXPECT_EQ(did_you_mean("16", {"8", "12"}), "; did you mean \"12\"?");
  for (const std::string far : {"xyzzy", "3", ""}) EXPECT_EQ(did_you_mean(far, {"2", "ok"}), ".");
  EXPECT_EQ(did_you_mean("x", {}), ".");
}

TEST(JoinOr, ReadsAsALine) {
  EXPECT_EQ(join_or({}), "");
  EXPECT_EQ(join_or({"a"}), "a");
  EXPECT_EQ(join_or({"a", "b"}), "a or b");
  EXPECT_EQ(join_or({"a", "b", "c"}), "a, b or c");
}

TEST(InQuotes, ReadsBackAsTheSameToml) {
  for (const std::string word :
       {"plain", "a \"b\" c", "back\\slash", "tab\tline\nbell\a\x7f", ""}) {
    const auto value = parse_toml_value(in_quotes(word));
    ASSERT_TRUE(value.has_value()) << in_quotes(word);
    EXPECT_EQ(value->string, word);
  }
}

}  // namespace
}  // namespace kuafu
