// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/formula.h"
#include "kuafu/experiment/formula_tokens.h"

namespace kuafu {
namespace {

using Kind = FormulaNode::Kind;

using formula::fail;
using formula::Token;

constexpr size_t kMostLetters = 4000;
constexpr int kDeepest = 100;  ///< brackets, signs and `not` inside each other

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text), tokens_(formula::tokens_of(text)) {}

  FormulaNode run() {
    FormulaNode node = disjunction();
    if (now().kind != Token::Kind::kEnd) {
      expected(is_sign("=") ? "==, which compares" : "an operator or the end");
    }
    return node;
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  bool is_sign(std::string_view sign) const {
    return now().kind == Token::Kind::kSign && now().word == sign;
  }
  bool is_word(std::string_view word) const {
    return now().kind == Token::Kind::kName && now().word == word;
  }

  [[noreturn]] void expected(const std::string& what) const {
    const std::string found =
        now().kind == Token::Kind::kEnd ? "the formula ends" : "found " + in_quotes(now().word);
    fail(text_, now().letter, text("expected ", what, "; ", found));
  }

  void take(std::string_view sign) {
    if (!is_sign(sign)) expected(text("\"", sign, "\""));
    ++at_;
  }

  FormulaNode binary(FormulaNode left, FormulaNode (Parser::*operand)()) {
    FormulaNode node{Kind::kBinary, now().word, {}, {}, {}, now().letter};
    ++at_;
    node.parts.push_back(std::move(left));
    node.parts.push_back((this->*operand)());
    return node;
  }

  FormulaNode disjunction() {
    FormulaNode node = conjunction();
    while (is_word("or")) node = binary(std::move(node), &Parser::conjunction);
    return node;
  }

  FormulaNode conjunction() {
    FormulaNode node = inversion();
    while (is_word("and")) node = binary(std::move(node), &Parser::inversion);
    return node;
  }

  /// `not` and signs, which may stand before each other.
  FormulaNode prefixed(Kind kind, FormulaNode (Parser::*operand)()) {
    if (++depth_ > kDeepest) fail(text_, now().letter, "too deeply nested");
    FormulaNode node{kind, now().word, {}, {}, {}, now().letter};
    ++at_;
    node.parts.push_back((this->*operand)());
    --depth_;
    return node;
  }

  FormulaNode inversion() {
    if (is_word("not")) return prefixed(Kind::kNot, &Parser::inversion);
    return comparison();
  }

  bool is_comparison() const {
    static const std::vector<std::string> signs = {"==", "!=", "<", "<=", ">", ">="};
    return now().kind == Token::Kind::kSign &&
           std::find(signs.begin(), signs.end(), now().word) != signs.end();
  }

  FormulaNode comparison() {
    FormulaNode node = sum();
    if (!is_comparison()) return node;
    node = binary(std::move(node), &Parser::sum);
    if (is_comparison()) {
      fail(text_, now().letter, "comparisons do not chain; join two with \"and\"");
    }
    return node;
  }

  FormulaNode sum() {
    FormulaNode node = product();
    while (is_sign("+") || is_sign("-")) node = binary(std::move(node), &Parser::product);
    return node;
  }

  FormulaNode product() {
    FormulaNode node = signed_one();
    while (is_sign("*") || is_sign("/") || is_sign("%")) {
      node = binary(std::move(node), &Parser::signed_one);
    }
    return node;
  }

  FormulaNode signed_one() {
    if (is_sign("-") || is_sign("+")) return prefixed(Kind::kSign, &Parser::signed_one);
    return single();
  }

  FormulaNode literal(Value value) {
    FormulaNode node{Kind::kLiteral, now().word, std::move(value), {}, {}, now().letter};
    ++at_;
    return node;
  }

  FormulaNode number() {
    const std::string& word = now().word;
    int64_t whole = 0;
    const char* end = word.data() + word.size();
    if (const auto [at, error] = std::from_chars(word.data(), end, whole);
        error == std::errc() && at == end) {
      return literal(Value::whole(whole));
    }
    double real = 0;
    const auto [at, error] = std::from_chars(word.data(), end, real);
    if (error != std::errc() || at != end) fail(text_, now().letter, word + " is out of range");
    return literal(Value::real(real));
  }

  FormulaNode single() {
    switch (now().kind) {
      case Token::Kind::kNumber:
        return number();
      case Token::Kind::kText:
        return literal(Value::text(now().word));
      case Token::Kind::kName:
        if (is_word("true") || is_word("false")) return literal(Value::truth(is_word("true")));
        if (is_word("and") || is_word("or") || is_word("not")) expected("a value");
        return tokens_[at_ + 1].kind == Token::Kind::kSign && tokens_[at_ + 1].word == "(" ? call()
                                                                                           : name();
      case Token::Kind::kQuotedName:
        return name();
      default:
        break;
    }
    if (!is_sign("(")) expected("a number, a 'text', a name or (");
    return nested([&] { return disjunction(); });
  }

  FormulaNode name() {
    FormulaNode node{Kind::kName, now().word, {}, {}, {}, now().letter};
    if (node.word.empty()) expected("a name between the backticks");
    ++at_;
    return node;
  }

  template <class Inside>
  FormulaNode nested(const Inside& inside) {
    if (++depth_ > kDeepest) fail(text_, now().letter, "too deeply nested");
    take("(");
    FormulaNode node = inside();
    take(")");
    --depth_;
    return node;
  }

  bool is_pick() const {
    return (now().kind == Token::Kind::kName || now().kind == Token::Kind::kQuotedName) &&
           tokens_[at_ + 1].kind == Token::Kind::kSign && tokens_[at_ + 1].word == "=";
  }

  FormulaNode call() {
    FormulaNode node{Kind::kCall, now().word, {}, {}, {}, now().letter};
    const auto& known = formula_functions();
    if (std::find(known.begin(), known.end(), node.word) == known.end()) {
      fail(text_, now().letter,
           text("no function ", in_quotes(node.word), did_you_mean(node.word, known), " There are ",
                join(known)));
    }
    ++at_;
    FormulaNode full = nested([&] {
      while (!is_sign(")")) {
        if (is_pick()) {
          const std::string key = now().word;
          at_ += 2;
          node.picks.emplace_back(key, sum());
        } else {
          node.parts.push_back(disjunction());
        }
        if (!is_sign(")")) take(",");
      }
      return std::move(node);
    });
    check_call(full);
    return full;
  }

  void check_call(const FormulaNode& call) const {
    const size_t n = call.parts.size();
    const bool is_scalar = call.picks.empty();
    const std::string& f = call.word;
    std::string wanted;
    if (f == "at") {
      if (n != 1 || is_scalar) wanted = "at(strategy = 'one rank', formula)";
    } else if (f == "count") {
      if (n > 1) wanted = "count() or count(condition)";
    } else if (f == "min" || f == "max") {
      if (n == 0 || (n > 1 && !is_scalar)) wanted = f + "(a, b) or " + f + "(formula) over rows";
    } else if (f == "abs" || f == "sqrt" || f == "ceil" || f == "floor" || f == "round" ||
               f == "log2") {
      if (n != 1 || !is_scalar) wanted = f + "(a)";
    } else if (n != 1) {
      wanted = f + "(formula) over rows";
    }
    if (!wanted.empty()) fail(text_, call.letter, text(f, " is written ", wanted));
  }

  const std::string& text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

const std::vector<std::string>& formula_functions() {
  static const std::vector<std::string> names = {"min",    "max",   "abs",   "sqrt", "ceil",
                                                 "floor",  "round", "log2",  "at",   "mean",
                                                 "median", "sum",   "count", "all",  "any"};
  return names;
}

FormulaNode parse_formula(const std::string& text) {
  KUAFU_REQUIRE(text.find_first_not_of(" \t\n\r") != std::string::npos, "an empty formula");
  KUAFU_REQUIRE(text.size() <= kMostLetters, "a formula of ", text.size(), " letters; at most ",
                kMostLetters, " are read");
  return Parser(text).run();
}

}  // namespace kuafu
