// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/registry.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/base/messages.h"

namespace kuafu {
namespace {

using Make = std::function<int()>;

Registry<Make> numbers() {
  Registry<Make> registry("number");
  registry.add("two", "the first prime", [] { return 2; });
  registry.add("one", "the unit", [] { return 1; });
  return registry;
}

TEST(Registry, KeepsTheOrderOfAdding) {
  EXPECT_EQ(numbers().names(), (std::vector<std::string>{"two", "one"}));
  EXPECT_EQ(numbers().describe(), "two  the first prime\none  the unit\n");
}

TEST(Registry, FindsByName) {
  EXPECT_EQ(numbers().find("one")(), 1);
  EXPECT_TRUE(numbers().contains("two"));
  EXPECT_FALSE(numbers().contains("three"));
}

TEST(Registry, RefusesASecondEntryOfOneName) {
  auto registry = numbers();
  const auto message =
      message_of<ConfigError>([&] { registry.add("two", "again", [] { return 2; }); });
  expect_says(message, {"number", "\"two\"", "rename"});
  EXPECT_EQ(registry.entries().size(), 2u);
}

TEST(Registry, RefusesAnEmptyName) {
  auto registry = numbers();
  expect_says(message_of<ConfigError>([&] { registry.add("", "nobody", [] { return 0; }); }),
              {"needs a name", "nobody"});
}

TEST(Registry, ListsWhatExistsWhereANameIsMissing) {
  expect_says(message_of<NotFound>([] { numbers().find("tow"); }),
              {"no number \"tow\"", "nearest: \"two\"", "allowed: \"two\", \"one\""});
  expect_says(message_of<NotFound>([] { Registry<Make>("number").find("one"); }),
              {"there are none"});
}

}  // namespace
}  // namespace kuafu
