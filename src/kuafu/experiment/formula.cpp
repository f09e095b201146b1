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

class Evaluator {
 public:
  explicit Evaluator(double tolerance) : tolerance_(tolerance) {}

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
    return is_comparison(node) ? comparison(node.word, a, b, tolerance_)
                               : arithmetic(node.word, a, b);
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

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
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
  return best;
}

bool is_aggregate(const FormulaNode& call) {
  static const std::set<std::string> always = {"mean", "median", "sum", "count", "all", "any"};
  if (call.kind != Kind::kCall) return false;
  return always.contains(call.word) ||
         ((call.word == "min" || call.word == "max") && call.parts.size() == 1);
}

Formula::Formula(std::string text) : text_(std::move(text)), root_(parse_formula(text_)) {}

Value Formula::evaluate(const FormulaScope& scope, double tolerance) const {
  return Evaluator(tolerance).of(root_, scope);
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
  if (is_comparison(root_)) {
    return kuafu::text(evaluator.of(root_.parts[0], scope).shown(), " ", root_.word, " ",
                       evaluator.of(root_.parts[1], scope).shown());
  }
  std::vector<std::string> shown;
  std::set<std::string> told;
  visit([&](const FormulaNode& node, bool is_of_row) {
    if (node.kind != Kind::kName || !is_of_row || !told.insert(node.word).second) return;
    shown.push_back(kuafu::text(node.word, " = ", scope.value(node.word).shown()));
  });
  return join(shown);
}

}  // namespace kuafu
