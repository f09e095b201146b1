// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/experiment/derivation.h"

namespace kuafu {
namespace {

using test::kSweep;

std::string derived_error(const std::string& more, const std::string& origin = "dir/s.toml") {
  try {
    parse_suite(kSweep + more, origin);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

void expect_derived_error(const std::string& more, const std::vector<std::string>& words) {
  const std::string said = derived_error(more);
  for (const auto& word : words) {
    EXPECT_NE(said.find(word), std::string::npos) << "no \"" << word << "\" in: " << said;
  }
}

TEST(DerivedErrors, NameTheLineAndTheNearestName) {
  const std::string column = "[[column]]\nname = \"x\"\nformula = ";
  expect_derived_error(column + "\"los.last\"\n",
                       {"dir/s.toml:12", "[[column]] \"x\"", "\"los.last\"", "\"loss.last\""});
  expect_derived_error(column + "\"hiden * 2\"\n", {"\"hiden\"", "did you mean"});
  expect_derived_error(column + "\"loss * 2\"\n", {"loss is a list", "loss.first, .last"});
  const std::string ratios = "telemetry.trust_ratio";
  expect_derived_error(column + "\"" + ratios + "\"\n",
                       {"is a list of lists; say", ".last.max: the"});
  expect_derived_error(column + "\"" + ratios + ".last\"\n",
                       {"last is a list; say", ".last.first"});
  expect_derived_error(
      column + "\"" + ratios + ".max\"\n",
      {"no \"telemetry.trust_ratio.max\"", "did you mean \"telemetry.trust_ratio"});
  expect_derived_error(column + "\"memory\"\n", {"memory is an object"});
  expect_derived_error(column + "\"1 +\"\n", {"dir/s.toml:14", "formula", "letter 4"});
  expect_derived_error(column + "\"at(strategy = 'one rnk', ranks)\"\n",
                       {"\"one rnk\"", "\"one rank\""});
  expect_derived_error(column + "\"at(ranks = 3, loss.last)\"\n",
                       {"no case has ranks = \"3\"", "\"1\", \"2\" or \"4\""});
  expect_derived_error(column + "\"at(rank = 2, loss.last)\"\n", {"\"rank\"", "\"ranks\""});
  expect_derived_error(column + "\"x + 1\"\n", {"no \"x\" is known"});
  expect_derived_error("[[column]]\nname = \"loss\"\nformula = \"1\"\n", {"has this name"});
  expect_derived_error(column + "\"1\"\n" + column + "\"2\"\n",
                       {"dir/s.toml:15", "a column above"});
  expect_derived_error("[[column]]\nname = \"x\"\n", {"dir/s.toml:12", "formula is missing"});
  expect_derived_error(column + "\"1\"\nunits = \"s\"\n",
                       {"dir/s.toml:15", "\"column.units\"", "\"unit\""});
  expect_derived_error("[[colum]]\nname = \"x\"\n", {"\"colum\"", "\"column\""});
}

TEST(DerivedErrors, OfClaims) {
  const std::string claim = "[[claim]]\nname = \"c\"\nsource = \"s\"\nformula = ";
  expect_derived_error("[[claim]]\nname = \"c\"\nformula = \"ranks > 1\"\n",
                       {"dir/s.toml:12", "source", "is missing"});
  expect_derived_error(claim + "\"ranks > 1\"\n" + claim + "\"ranks > 2\"\n",
                       {"dir/s.toml:16", "a claim above has this name"});
  expect_derived_error(claim + "\"ranks + 1\"\n", {"true or false", "ranks + 1"});
  expect_derived_error(claim + "\"ranks > 0\"\nwhere = \"strategy != 'one rnk'\"\n",
                       {"where", "no case has strategy = \"one rnk\"", "\"one rank\""});
  expect_derived_error(claim + "\"strategy == 'date' or ranks > 0\"\n", {"did you mean \"data\""});
  for (const char* constant : {"at(ranks = 1, 2)", "all(2)", "ranks and ranks > 1", "not ranks",
                               "loss.last", "train.batch", "min(1, 2)", "'yes'"}) {
    expect_derived_error(claim + "\"" + constant + "\"\n",
                         {"dir/s.toml:12", "true or false", constant});
  }
  for (const char* truth : {"all(ranks > 0)", "at(ranks = 1, loss.last > 1)", "not ranks > 9"}) {
    EXPECT_EQ(derived_error(claim + "\"" + truth + "\"\n"), "no error");
  }
  expect_derived_error(claim + "\"1 < 2\"\n", {"asks no case"});
  expect_derived_error(claim + "\"ranks > 1\"\nwhere = { stategy = \"data\" }\n",
                       {"\"stategy\"", "\"strategy\""});
  expect_derived_error(claim + "\"ranks > 1\"\nwhere = { strategy = \"dta\" }\n",
                       {"\"dta\"", "\"data\""});
  expect_derived_error(claim + "\"ranks > 1\"\nwhere = { status = \"fine\" }\n",
                       {"\"fine\"", "status"});
  expect_derived_error(claim + "\"status == 1\"\n",
                       {"dir/s.toml:12", "letter", "status is a text"});
  expect_derived_error(claim + "\"all('okay' == status)\"\n",
                       {"status is never \"okay\"", "It is ok"});
  expect_derived_error(claim + "\"certificate.verdict != 'refuted'\"\n",
                       {"certificate.verdict is never \"refuted\""});
  expect_derived_error(claim + "\"all(step_time_s.median == 'none')\"\n", {"is a number", "none"});
  expect_derived_error(claim + "\"strategy != 1\"\n", {"strategy is a text", "not 1"});
  expect_derived_error(claim + "\"ranks == 'one'\"\n", {"ranks is a number", "one"});
  EXPECT_EQ(derived_error(claim + "\"all(status == 'ok')\"\n"), "no error");
  expect_derived_error(claim + "\"ranks > 1\"\nwhere = 3\n", {"dir/s.toml:16", "where"});
  expect_derived_error(claim + "\"ranks > 1\"\nwithin = \"5%\"\n", {"dir/s.toml:16", "within"});
}

TEST(DerivedErrors, OfFigures) {
  const std::string axes = "x = \"ranks\"\ny = \"loss.last\"\n";
  expect_derived_error("[[figure]]\nkind = \"lines\"\n" + axes,
                       {"dir/s.toml:13", "\"lines\"", "did you mean \"line\""});
  expect_derived_error("[[figure]]\n" + axes, {"dir/s.toml:12", "kind", "script"});
  expect_derived_error("[[figure]]\nkind = \"line\"\nx = \"ranks\"\n", {"y is missing"});
  expect_derived_error("[[figure]]\nkind = \"bar\"\nx = \"ranks\"\ny = \"speed\"\n",
                       {"dir/s.toml:12", "y = \"speed\""});
  expect_derived_error("[[figure]]\nkind = \"bar\"\n" + axes + "by = \"stratgy\"\n",
                       {"\"strategy\""});
  expect_derived_error("[[figure]]\nkind = \"bar\"\n" + axes + "log = \"z\"\n",
                       {"dir/s.toml:16", "\"z\"", "\"xy\""});
  expect_derived_error("[[figure]]\nkind = \"bar\"\n" + axes + "z = \"ranks\"\n", {"heatmap"});
  expect_derived_error("[[figure]]\nkind = \"heatmap\"\n" + axes, {"wants z"});
  expect_derived_error("[[figure]]\nscript = \"gone.py\"\n",
                       {"dir/s.toml:13", "gone.py", "no such file"});
  expect_derived_error("[[figure]]\nscript = \"gone.sh\"\n", {"*.py"});
  expect_derived_error("[[figure]]\nscript = \"gone.py\"\nkind = \"bar\"\n", {"draws by itself"});
}

}  // namespace
}  // namespace kuafu
