// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/formula.h"

#include <algorithm>
#include <limits>
#include <set>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/expand.h"

namespace kuafu {
namespace {

using Kind = FormulaNode::Kind;
using Picks = FormulaScope::Picks;

bool is_comparison(const FormulaNode& node) {
  return node.kind == Kind::kBinary &&
         (node.word[0] == '=' || node.word[0] == '!' || node.word[0] == '<' || node.word[0] == '>');
}

/// What was measured is positive, and stays so without a difference: then errors are of its logarithm.
Scale scale_of(const FormulaNode& node, const FormulaScope& scope) {
  const bool is_sum = node.kind == Kind::kBinary || node.kind == Kind::kSign;
  if ((is_sum && (node.word == "-" || node.word == "%")) ||
      (node.kind == Kind::kCall && node.word == "log2") ||
      (node.kind == Kind::kName && scope.is_difference(node.word))) {
    return Scale::kDifference;
  }
  const bool is_ratio =
      std::all_of(node.parts.begin(), node.parts.end(),
                  [&](const FormulaNode& part) { return scale_of(part, scope) == Scale::kRatio; });
  return is_ratio ? Scale::kRatio : Scale::kDifference;
}

/// Both sides of a comparison as one number: of positive sides left over right, else left less right.
struct Paired {
  Value value;
  Scale scale = Scale::kRatio;
};

class Evaluator {
 public:
  explicit Evaluator(double tolerance) : tolerance_(tolerance) {}

  /// A number over the rounds that all it reads was timed in, where there are several of them.
  Value over_rounds_of(const FormulaNode& node, const FormulaScope& scope) const {
    Value at_once = of(node, scope);
    if (!at_once.is_number() || at_once.is_point()) return at_once;
    std::vector<Value> rounds;
    for (const auto& round : scope.rounds()) {
      Value value = of(node, *round);
      if (value.is_number()) rounds.push_back(std::move(value));
    }
    return over_rounds(rounds, scale_of(node, scope)).value_or(at_once);
  }

  /// "0.012 (0.011 to 0.013) < 0.015 (0.013 to 0.017), ..."
  std::string shown(const FormulaNode& compared, const FormulaScope& scope) const {
    const Value a = of(compared.parts[0], scope), b = of(compared.parts[1], scope);
    return shown(compared, a, b, paired(compared, a, b, scope), scope);
  }

  Value of(const FormulaNode& node, const FormulaScope& scope) const {
    switch (node.kind) {
      case Kind::kLiteral:
        return node.value;
      case Kind::kName:
        return scope.value(node.word);
      case Kind::kNot:
        return negation(of(node.parts[0], scope));
      case Kind::kSign:
        return arithmetic(node.word, Value::whole(0), of(node.parts[0], scope));
      case Kind::kBinary:
        return of_binary(node, scope);
      case Kind::kCall:
        break;
    }
    if (node.word == "at") return elsewhere(node, scope);
    if (is_aggregate(node)) return over_rows(node, scope);
    std::vector<Value> values;
    for (const FormulaNode& part : node.parts) values.push_back(of(part, scope));
    return values.size() > 1 ? of_many(node.word, values) : of_one(node.word, values[0]);
  }

 private:
  Value of_binary(const FormulaNode& node, const FormulaScope& scope) const {
    const Value a = of(node.parts[0], scope), b = of(node.parts[1], scope);
    if (node.word == "and") return both(a, b);
    if (node.word == "or") return either(a, b);
    return is_comparison(node) ? of_comparison(node, a, b, scope) : arithmetic(node.word, a, b);
  }

  Value of_comparison(const FormulaNode& node, const Value& a, const Value& b,
                      const FormulaScope& scope) const {
    const auto both_sides = paired(node, a, b, scope);
    const bool is_ratio = both_sides && both_sides->scale == Scale::kRatio;
    const Value right = !both_sides ? b : is_ratio ? Value::whole(1) : Value::real(b.number);
    const Value left = !both_sides ? a
                       : is_ratio  ? both_sides->value
                                   : arithmetic("+", both_sides->value, right);
    const Value decided = comparison(node.word, left, right, tolerance_);
    if (!decided.is_absent() || !a.is_number() || !b.is_number()) return decided;
    return Value::absent(
        text("undecided within the 95 % intervals: ", shown(node, a, b, both_sides, scope)));
  }

  /// None where a side is no measured number, or was timed in one round.
  std::optional<Paired> paired(const FormulaNode& node, const Value& a, const Value& b,
                               const FormulaScope& scope) const {
    if (!a.is_number() || !b.is_number() || (a.is_point() && b.is_point())) return std::nullopt;
    std::vector<Value> ratios, differences;
    for (const auto& round : scope.rounds()) {
      const Value x = of(node.parts[0], *round), y = of(node.parts[1], *round);
      if (!x.is_number() || !y.is_number()) continue;
      if (x.low > 0 && y.low > 0) ratios.push_back(arithmetic("/", x, y));
      differences.push_back(arithmetic("-", x, y));
    }
    const bool is_ratio = ratios.size() == differences.size() &&
                          scale_of(node.parts[0], scope) == Scale::kRatio &&
                          scale_of(node.parts[1], scope) == Scale::kRatio;
    const Scale scale = is_ratio ? Scale::kRatio : Scale::kDifference;
    const auto value = over_rounds(is_ratio ? ratios : differences, scale);
    return value ? std::optional(Paired{*value, scale}) : std::nullopt;
  }

  static std::string shown(const FormulaNode& node, const Value& a, const Value& b,
                           const std::optional<Paired>& both_sides, const FormulaScope& scope) {
    const bool is_of_one = unit_of(node.parts[0], scope) == unit_of(node.parts[1], scope);
    std::string unit = is_of_one ? unit_of(node.parts[0], scope) : "";
    if (a.shown(unit) == b.shown(unit)) unit.clear();  // rounded to one, they would tell nothing
    const std::string sides = text(a.shown(unit), " ", node.word, " ", b.shown(unit));
    if (!both_sides) return sides;
    const bool is_ratio = both_sides->scale == Scale::kRatio;
    return text(sides, ", round by round the left ", is_ratio ? "over" : "less", " the right is ",
                both_sides->value.shown(is_ratio ? "" : unit));
  }

  /// The asked values are those of the row in hand. False with the reason where one is absent.
  bool take_picks(const FormulaNode& node, const FormulaScope& scope, Picks& picks,
                  std::string& why_not) const {
    for (const auto& [key, asked] : node.picks) {
      picks.emplace_back(key, of(asked, scope));
      if (!picks.back().second.is_absent()) continue;
      why_not = picks.back().second.words;
      return false;
    }
    return true;
  }

  Value elsewhere(const FormulaNode& node, const FormulaScope& scope) const {
    Picks picks;
    std::string why_not;
    if (!take_picks(node, scope, picks, why_not)) return Value::absent(why_not);
    const auto there = scope.like(picks, why_not);
    return there ? of(node.parts[0], *there) : Value::absent(why_not);
  }

  Value over_rows(const FormulaNode& node, const FormulaScope& scope) const {
    Picks picks;
    std::string why_not;
    if (!take_picks(node, scope, picks, why_not)) return Value::absent(why_not);
    const auto rows = scope.rows(picks);
    if (node.parts.empty()) return Value::whole(static_cast<int64_t>(rows.size()));
    std::vector<Value> values;
    for (const auto& row : rows) values.push_back(of(node.parts[0], *row));
    return node.word == "count" ? counted(values) : of_many(node.word, values);
  }

  static Value counted(const std::vector<Value>& values) {
    int64_t count = 0;
    for (const Value& v : values) {
      const Value is_counted = both(v, Value::truth(true));
      if (is_counted.is_absent()) return is_counted;
      count += is_counted.is_true() ? 1 : 0;
    }
    return Value::whole(count);
  }

  double tolerance_;
};

void walk(const FormulaNode& node, bool is_of_row,
          const std::function<void(const FormulaNode&, bool)>& seen) {
  seen(node, is_of_row);
  for (const auto& [key, asked] : node.picks) walk(asked, is_of_row, seen);
  const bool is_inside = is_of_row && !is_aggregate(node);
  for (const FormulaNode& part : node.parts) walk(part, is_inside, seen);
}

}  // namespace

std::unique_ptr<FormulaScope> FormulaScope::like(const Picks&, std::string& why_not) const {
  why_not = "at() looks at other cases, of which there are none here";
  return nullptr;
}

std::vector<std::unique_ptr<FormulaScope>> FormulaScope::rows(const Picks&) const { return {}; }
std::vector<std::unique_ptr<FormulaScope>> FormulaScope::rounds() const { return {}; }
std::string FormulaScope::unit(const std::string&) const { return ""; }

bool FormulaScope::is_difference(const std::string&) const { return false; }

std::string did_you_mean_name(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const std::string& other : known) {
    const bool has_dots = last_word(other) != other;
    const int64_t by_word = has_dots ? 1 + edit_distance(name, last_word(other)) : fewest;
    const int64_t edits = std::min(edit_distance(name, other), by_word);
    if (edits >= fewest) continue;
    fewest = edits;
    best = other;
  }
  const bool is_near = fewest <= 1 + std::ssize(name) / 2;
  return is_near ? text("; did you mean ", in_quotes(best), "?") : ".";
}

bool is_aggregate(const FormulaNode& call) {
  static const std::set<std::string> always = {"mean", "median", "sum", "count", "all", "any"};
  if (call.kind != Kind::kCall) return false;
  return always.contains(call.word) ||
         ((call.word == "min" || call.word == "max") && call.parts.size() == 1);
}

Formula::Formula(std::string text) : text_(std::move(text)), root_(parse_formula(text_)) {}

Value Formula::evaluate(const FormulaScope& scope, double tolerance) const {
  return Evaluator(tolerance).over_rounds_of(root_, scope);
}

bool Formula::is_difference(const FormulaScope& scope) const {
  return scale_of(root_, scope) == Scale::kDifference;
}

void Formula::visit(const std::function<void(const FormulaNode&, bool)>& seen) const {
  walk(root_, true, seen);
}

bool Formula::is_of_row() const {
  bool is_found = false;
  visit([&](const FormulaNode& node, bool is_of_row) {
    const bool needs_row =
        node.kind == Kind::kName || (node.kind == Kind::kCall && node.word == "at");
    is_found = is_found || (is_of_row && needs_row);
  });
  return is_found;
}

bool Formula::has_aggregate() const {
  bool is_found = false;
  visit([&](const FormulaNode& node, bool) { is_found = is_found || is_aggregate(node); });
  return is_found;
}

std::string Formula::values_shown(const FormulaScope& scope) const {
  const Evaluator evaluator(0);
  if (is_comparison(root_)) return evaluator.shown(root_, scope);
  std::vector<std::string> shown;
  std::set<std::string> told;
  visit([&](const FormulaNode& node, bool is_of_row) {
    if (node.kind != Kind::kName || !is_of_row || !told.insert(node.word).second) return;
    shown.push_back(
        kuafu::text(node.word, " = ", scope.value(node.word).shown(scope.unit(node.word))));
  });
  return join(shown);
}

}  // namespace kuafu
