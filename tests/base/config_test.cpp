// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "kuafu/base/errors.h"
#include "tests/base/messages.h"

namespace kuafu {
namespace {

using Kind = ConfigValue::Kind;

TEST(ParseToml, KeepsTheOrderWrittenAndTheLines) {
  const ConfigValue document = parse_toml("zeta = 1\n\n[later]\nb = true\na = \"x\"\n", "f.toml");
  ASSERT_EQ(document.entries.size(), 2u);
  EXPECT_EQ(document.entries[0].first, "zeta");
  EXPECT_EQ(document.entries[0].second.line, 1);
  const ConfigValue* later = document.find("later");
  ASSERT_NE(later, nullptr);
  ASSERT_EQ(later->entries.size(), 2u);
  EXPECT_EQ(later->entries[0].first, "b");
  EXPECT_EQ(later->entries[0].second.line, 4);
  EXPECT_EQ(later->entries[1].second.line, 5);
  EXPECT_EQ(document.find("nobody"), nullptr);
}

TEST(ParseToml, KeepsEveryKind) {
  const ConfigValue d = parse_toml(
      "i = 4\nn = 2.5\nb = false\ns = \"x\"\nt = 1979-05-27\nl = [1, [2]]\nm = { k = 1 }\n", "f");
  EXPECT_EQ(d.find("i")->integer, 4);
  EXPECT_EQ(d.find("n")->number, 2.5);
  EXPECT_EQ(d.find("b")->kind, Kind::kBoolean);
  EXPECT_EQ(d.find("s")->string, "x");
  EXPECT_EQ(d.find("t")->kind, Kind::kTime);
  EXPECT_EQ(d.find("l")->items[1].items[0].integer, 2);
  EXPECT_EQ(d.find("m")->find("k")->integer, 1);
  EXPECT_EQ(
      to_string(d),
      "{ i = 4, n = 2.5, b = false, s = \"x\", t = 1979-05-27, l = [1, [2]], m = { k = 1 } }");
}

TEST(ParseToml, NamesFileAndLineOfSyntaxErrors) {
  expect_says(message_of<ConfigError>([] { parse_toml("a = 1\nb = = 2\n", "bad.toml"); }),
              {"bad.toml:2: not valid TOML"});
  expect_says(message_of<ConfigError>([] { parse_toml("a = 1\n\na = 2\n", "bad.toml"); }),
              {"bad.toml:3: not valid TOML", "'a'"});
}

TEST(ParseToml, RefusesNumbersThatUnderflow) {
  expect_says(
      message_of<ConfigError>([] { parse_toml("a = 1\n\"\u00e9\" = 1_0.5e-400\n", "x.toml"); }),
      {"x.toml:2: \u00e9 = 1_0.5e-400 is too small for a number of 64 bits"});
  expect_says(message_of<ConfigError>([] { parse_toml("a = [0.0, -1e-999]", "x.toml"); }),
              {"x.toml:1: a = -1e-999 is too small"});
  EXPECT_FALSE(parse_toml_value("1e-400").has_value());
  for (const char* zero : {"0.0", "-0.0", "0e5", "0.000", "+0.0e-400"}) {
    EXPECT_EQ(parse_toml_value(zero)->number, 0) << zero;
  }
}

TEST(ParseTomlValue, TakesOneValueOnly) {
  EXPECT_EQ(parse_toml_value("5")->integer, 5);
  EXPECT_EQ(parse_toml_value("{ size = 2 }")->find("size")->integer, 2);
  EXPECT_FALSE(parse_toml_value("word").has_value());
  EXPECT_FALSE(parse_toml_value("").has_value());
  EXPECT_FALSE(parse_toml_value("5\nother = 6").has_value());
}

TEST(TomlNumber, ReadsBackAsTheSameNumber) {
  for (const double x : {0.0, 1.0, 0.1, 1e-8, 1e300, 5e-324, -2.5, 1.0 / 3, 123456789.0}) {
    const auto value = parse_toml_value(toml_number(x));
    ASSERT_TRUE(value.has_value()) << toml_number(x);
    EXPECT_EQ(value->kind, Kind::kNumber) << toml_number(x);
    EXPECT_EQ(value->number, x);
  }
  EXPECT_EQ(toml_number(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(toml_number(std::nan("")), "nan");
}

TEST(ReadFile, SaysWhyItCannot) {
  expect_says(message_of<ConfigError>([] { read_file("/nowhere/plan.toml", "plan"); }),
              {"cannot read the plan \"/nowhere/plan.toml\"", "No such file"});
  const std::string folder = std::filesystem::temp_directory_path().string();
  expect_says(message_of<ConfigError>([&] { read_file(folder, "plan"); }), {folder, "is a folder"});
}

TEST(ParseToml, KeysOfManyPartsAreRefused) {
  std::string key = "a";
  for (int i = 1; i < 16; ++i) key += ".a";
  EXPECT_NO_THROW(parse_toml(key + " = 1\n[b]\n" + key + " = [0.1, 0.2]\n", "x"));
  EXPECT_NO_THROW(
      parse_toml("# ....................\nt = \"....................\"\n"
                 "u = \"\"\"\n....................\"\"\"\nv = '....................'\n"
                 "w = \"\\\"....................\"\n",
                 "x"));
  for (const std::string& deep : {key + ".a = 1", "[" + key + ".a]", "\"x\"." + key + " = 1",
                                  "b = { " + key + " . a = 1 }"}) {
    try {
      parse_toml("# one\nt = \"\"\"\ntwo\"\"\"\n" + deep, "x.toml");
      ADD_FAILURE() << deep;
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find("x.toml:4: "), std::string::npos) << e.what();
    }
    EXPECT_FALSE(parse_toml_value("{ " + key + ".a = 1 }").has_value());
  }
}

}  // namespace
}  // namespace kuafu
