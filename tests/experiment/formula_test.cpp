// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/formula.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "kuafu/base/errors.h"
#include "kuafu/base/philox.h"

namespace kuafu {
namespace {

/// Names with values given by the test.
class Named : public FormulaScope {
 public:
  explicit Named(std::map<std::string, Value> values = {}) : values_(std::move(values)) {}
  Value value(const std::string& name) const override {
    const auto found = values_.find(name);
    return found == values_.end() ? Value::absent("no " + name) : found->second;
  }

 private:
  std::map<std::string, Value> values_;
};

Value worth(const std::string& text, const Named& scope = Named(), double tolerance = 0) {
  return Formula(text).evaluate(scope, tolerance);
}

Json json(const std::string& text, const Named& scope = Named()) {
  return worth(text, scope).json();
}

std::string formula_error(const std::string& text) {
  try {
    parse_formula(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Formula, BindsAsArithmeticDoes) {
  for (const auto& [text, value] : std::vector<std::pair<std::string, Json>>{
           {"1 + 2 * 3", 7},
           {"(1 + 2) * 3", 9},
           {"8 - 3 - 2", 3},
           {"8 / 4 / 2", 1},
           {"2 * 7 % 4", 2},
           {"-2 * 3", -6},
           {"- -2", 2},
           {"1 - -1", 2},
           {"-7 % 3", 2},
           {"7 % -3", -2},
           {"1 + 2 < 2 * 2", true},
           {"not 1 < 0 and 2 > 1", true},
           {"true or true and false", true},
           {"not true or true", true},
           {"1 == 1.0", true},
           {"'a' == \"a\"", true},
           {"'a' == 1", false},
           {"min(3, 1, 2)", 1},
           {"max(3, 1.5)", 3},
           {"abs(-4)", 4},
           {"ceil(2.1) + floor(2.9)", 5},
           {"round(2.5)", 3},
           {"log2(8)", 3},
           {"sqrt(16) == 4", true},
           {"1e3", 1000},
           {"2.5 * 2", 5},
           {"7 / 2", 3.5},
           {"9007199254740993 + 0", 9007199254740993},
       }) {
    EXPECT_EQ(json(text), value) << text;
  }
}

TEST(Formula, KeepsWholeNumbersWhole) {
  EXPECT_TRUE(json("6 / 2").is_number_integer());
  EXPECT_TRUE(json("sqrt(9)").is_number_integer());
  EXPECT_TRUE(json("0.5 * 4").is_number_integer());
  EXPECT_FALSE(json("1 / 3").is_number_integer());
  EXPECT_DOUBLE_EQ(json("9223372036854775807 + 1").get<double>(), 9223372036854775808.0);
  EXPECT_EQ(json("-9223372036854775807 - 1").get<int64_t>(), INT64_MIN);
}

TEST(Formula, SaysWhyItHasNoValue) {
  for (const auto& [text, why] : std::map<std::string, std::string>{
           {"1 / 0", "division by zero: 1 / 0"},
           {"1 % (2 - 2)", "division by zero"},
           {"sqrt(-1)", "sqrt of -1"},
           {"log2(0)", "log2 of 0"},
           {"1e308 * 10", "no finite number"},
           {"1 + 'a'", "wants numbers"},
           {"'a' < 'b'", "wants numbers"},
           {"1 and true", "neither true nor false"},
           {"gone + 1", "no gone"},
           {"at(ranks = 1, 2)", "no"},
       }) {
    const Value value = worth(text);
    EXPECT_TRUE(value.is_absent()) << text;
    EXPECT_NE(value.words.find(why), std::string::npos) << text << ": " << value.words;
    EXPECT_TRUE(value.json().is_null());
  }
}

TEST(Formula, DecidesWhatItCanWithoutTheRest) {
  EXPECT_TRUE(worth("gone > 1 and false").is_false());
  EXPECT_TRUE(worth("true or gone > 1").is_true());
  EXPECT_TRUE(worth("gone > 1 or false").is_absent());
}

TEST(Formula, ComparesIntervals) {
  const Named times({{"a", Value::within(10, 9, 11)},
                     {"b", Value::within(12, 10.5, 13)},
                     {"c", Value::within(20, 19, 21)}});
  EXPECT_TRUE(worth("a < c", times).is_true());
  EXPECT_TRUE(worth("c < a", times).is_false());
  EXPECT_TRUE(worth("a < b", times).is_absent());
  EXPECT_NE(worth("a < b", times).words.find("10 (9.000 to 11.00) < 12 (10.50"), std::string::npos)
      << worth("a < b", times).words;
  EXPECT_TRUE(worth("c / a > 1.5", times).is_true());
  EXPECT_TRUE(worth("c / a > 2", times).is_absent());
  EXPECT_TRUE(worth("a == b", times).is_absent());
  EXPECT_TRUE(worth("a == c", times).is_false());
  EXPECT_TRUE(worth("a - c < 0 and max(a, b) < c", times).is_true());
}

TEST(Formula, AllowsATolerance) {
  EXPECT_TRUE(worth("104 == 100", Named(), 0.05).is_true());
  EXPECT_TRUE(worth("106 == 100", Named(), 0.05).is_false());
  EXPECT_TRUE(worth("104 < 100", Named(), 0.05).is_true());
  EXPECT_TRUE(worth("96 >= 100", Named(), 0.05).is_true());
  EXPECT_TRUE(worth("94 >= 100", Named(), 0.05).is_false());
}

TEST(Formula, ReadsNamesWithDotsStarsAndSpaces) {
  std::vector<std::string> names;
  Formula("ledger.*.bytes_sent.max * loss.0 + `bytes a token`").visit([&](const auto& node, bool) {
    if (node.kind == FormulaNode::Kind::kName) names.push_back(node.word);
  });
  EXPECT_EQ(names,
            (std::vector<std::string>{"ledger.*.bytes_sent.max", "loss.0", "bytes a token"}));
  EXPECT_EQ(json("a*2", Named({{"a", Value::whole(4)}})), 8);
}

TEST(Formula, NamesTheLetterAndTheNearestFunction) {
  for (const auto& [text, said] : std::map<std::string, std::string>{
           {"1 +", "letter 4: expected a number, a 'text', a name or (; the formula ends"},
           {"1 2", "letter 3: expected an operator or the end; found \"2\""},
           {"a = 2", "expected ==, which compares"},
           {"1 < 2 < 3", "letter 7: comparisons do not chain"},
           {"mxa(1, 2)", "no function \"mxa\"; did you mean \"max\"?"},
           {"'a", "has no second one"},
           {"a $ b", "unexpected \"$\""},
           {"(1", "expected \")\""},
           {"sqrt(1, 2)", "sqrt is written sqrt(a)"},
           {"at(2)", "at is written at("},
           {"mean()", "mean is written"},
           {"", "an empty formula"},
           {"1e999", "out of range"},
           {std::string(300, '('), "too deeply nested"},
           {std::string(5000, '1'), "at most 4000"},
       }) {
    EXPECT_NE(formula_error(text).find(said), std::string::npos)
        << text << ": " << formula_error(text);
  }
}

TEST(Formula, KnowsWhetherItIsOfARow) {
  EXPECT_TRUE(Formula("a + 1").is_of_row());
  EXPECT_FALSE(Formula("mean(a) < max(b)").is_of_row());
  EXPECT_TRUE(Formula("mean(ranks = ranks, a) > 1").is_of_row());
  EXPECT_TRUE(Formula("max(a, b)").is_of_row());
  EXPECT_FALSE(Formula("max(a, b)").has_aggregate());
  EXPECT_TRUE(Formula("1 + count()").has_aggregate());
}

/// A random expression, its value by direct recursion, and how it is written with as few brackets
/// as its binding allows: a second evaluation that knows nothing of the parser.
struct Made {
  double value = 0;
  std::string text;
  int binding = 4;  ///< 1 sum, 2 product, 3 sign, 4 single
};

Made made(const CounterRandom& random, uint64_t& at, int depth) {
  const auto draw = [&](int n) { return static_cast<int>(random.uniform(at++) * n); };
  const int what = depth == 0 ? 0 : draw(8);
  if (what <= 1) {
    const int whole = draw(20);
    const bool is_real = draw(3) == 0;
    return {whole + (is_real ? 0.5 : 0.0), text(whole, is_real ? ".5" : ""), 4};
  }
  const auto in_brackets = [](const Made& m, int least) {
    return m.binding < least ? "(" + m.text + ")" : m.text;
  };
  if (what == 2) {
    const Made a = made(random, at, depth - 1);
    return {-a.value, "-" + in_brackets(a, 3), 3};
  }
  const Made a = made(random, at, depth - 1), b = made(random, at, depth - 1);
  if (what == 3) return {std::max(a.value, b.value), text("max(", a.text, ", ", b.text, ")"), 4};
  const char op = "+-*/"[what - 4];
  const int binding = op == '+' || op == '-' ? 1 : 2;
  const double value = op == '+'   ? a.value + b.value
                       : op == '-' ? a.value - b.value
                       : op == '*' ? a.value * b.value
                                   : a.value / b.value;
  // Left-associative: the right side binds tighter or has brackets.
  return {value, text(in_brackets(a, binding), " ", op, " ", in_brackets(b, binding + 1)), binding};
}

TEST(Formula, AgreesWithASecondEvaluationOfRandomExpressions) {
  const CounterRandom random(11, hash_name("formula"));
  uint64_t at = 0;
  int with_value = 0;
  for (int i = 0; i < 3000; ++i) {
    const Made expected = made(random, at, 5);
    if (expected.text.size() > 4000) continue;
    const Value value = worth(expected.text);
    if (!std::isfinite(expected.value)) continue;  // a division by zero inside
    if (value.is_absent()) {
      EXPECT_NE(value.words.find("division by zero"), std::string::npos) << expected.text;
      continue;
    }
    ++with_value;
    ASSERT_NEAR(value.number, expected.value, 1e-9 * std::max(1.0, std::abs(expected.value)))
        << expected.text;
  }
  EXPECT_GT(with_value, 2000);
}

TEST(Formula, SurvivesTenThousandMutatedTexts) {
  const std::vector<std::string> seeds = {
      "step_time_s.median < at(strategy = 'one rank', step_time_s.median)",
      "mean(ranks = 2, loss.last) / max(1, `bytes a token`) * 1e-3 >= 0.5 and not any(a != b)",
      "ceil(model.hidden / 64) % 3 + -ledger.*.bytes_sent.max",
  };
  const CounterRandom random(5, hash_name("mutants"));
  const std::string letters = "()'`\".,=<>!*+-/% aE19_\n\xff";
  uint64_t at = 0;
  const auto draw = [&](size_t n) {
    return static_cast<size_t>(random.uniform(at++) * static_cast<double>(n));
  };
  int parsed = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string text = seeds[draw(seeds.size())];
    for (size_t edits = 1 + draw(4); edits > 0; --edits) {
      const size_t where = draw(text.size());
      if (draw(2) == 0)
        text.erase(where, 1 + draw(5));
      else
        text.insert(where, 1, letters[draw(letters.size())]);
      if (text.empty()) text = "a";
    }
    try {
      const Formula formula(text);
      const Value value = formula.evaluate(Named({{"a", Value::whole(1)}}));
      formula.values_shown(Named());
      EXPECT_TRUE(!value.is_number() || std::isfinite(value.number)) << text;
      ++parsed;
    } catch (const ConfigError&) {  // the only thing that may be thrown
    }
  }
  EXPECT_GT(parsed, 500);
}

}  // namespace
}  // namespace kuafu
