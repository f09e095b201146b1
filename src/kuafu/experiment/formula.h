// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kuafu/experiment/formula_value.h"

namespace kuafu {

/// A part of a formula.
struct FormulaNode {
  enum class Kind : uint8_t { kLiteral, kName, kSign, kNot, kBinary, kCall };

  Kind kind = Kind::kLiteral;
  std::string word;                                        ///< a name, an operator or a function
  Value value;                                             ///< of a literal
  std::vector<FormulaNode> parts;                          ///< operands
  std::vector<std::pair<std::string, FormulaNode>> picks;  ///< `key = value` of at() and aggregates
  size_t letter = 0;                                       ///< where it begins, from 1
};

/// What the names of a formula stand for. The row in hand is one case; other rows are reached by
/// at() and aggregates, where there are rows at all.
class FormulaScope {
 public:
  using Picks = std::vector<std::pair<std::string, Value>>;

  virtual ~FormulaScope() = default;
  virtual Value value(const std::string& name) const = 0;
  /// The row like this one but for `picks`; null with the reason in `why_not`.
  virtual std::unique_ptr<FormulaScope> like(const Picks& picks, std::string& why_not) const;
  /// What an aggregate runs over: all rows in hand that have what `picks` say.
  virtual std::vector<std::unique_ptr<FormulaScope>> rows(const Picks& picks) const;
  /// What is in hand here, in each round of the sweep alone; none in a scope that is of one round.
  virtual std::vector<std::unique_ptr<FormulaScope>> rounds() const;
  /// Of what a name stands for, as "B" or "s"; empty: none.
  virtual std::string unit(const std::string& name) const;
  /// Whether a name stands for what may change its sign, as a difference does.
  virtual bool is_difference(const std::string& name) const;
};

/// An expression over names: numbers, 'texts', true, false; + - * / %; == != < <= > >=; not, and, or;
/// min max (of two and more) abs sqrt ceil floor round log2; at(key = value, formula), which is the
/// formula in another row; and over rows, with or without picks: min max mean median sum count all
/// any. A name has dots, `*` for any part, or `backticks` around what else is in it.
/// Where what it reads was timed in the same rounds, a number and both sides of a comparison are
/// computed in each of them, and the interval is that over rounds: what a slow minute does to all its
/// cases falls out.
class Formula {
 public:
  /// Throws ConfigError: formula, letter, what was expected, the nearest function.
  explicit Formula(std::string text);

  const std::string& text() const { return text_; }
  const FormulaNode& root() const { return root_; }

  /// `tolerance` is that of comparison(). What cannot be told is absent, with the reason.
  Value evaluate(const FormulaScope& scope, double tolerance = 0) const;

  /// Whether it may change its sign: it has a difference, a remainder, a logarithm, or a name that may.
  bool is_difference(const FormulaScope& scope) const;

  /// Calls `seen` for every part; `is_of_row`: outside of aggregates, so that a row must be in hand.
  void visit(const std::function<void(const FormulaNode&, bool is_of_row)>& seen) const;

  /// Whether a row must be in hand: it has names or at() outside of aggregates.
  bool is_of_row() const;
  bool has_aggregate() const;

  /// "ranks = 3, train.batch = 8": its names and their values; of a comparison at the top both
  /// sides, as sizes or times where both are and differ as such.
  std::string values_shown(const FormulaScope& scope) const;

 private:
  std::string text_;
  FormulaNode root_;
};

/// Whether a call runs over rows: an aggregate's name, but min and max of several numbers.
bool is_aggregate(const FormulaNode& call);

/// The unit of its value where that of all it reads says so; empty: none, or it is not known.
std::string unit_of(const FormulaNode& node, const FormulaScope& scope);

/// Of a formula's text. Throws as Formula does.
FormulaNode parse_formula(const std::string& text);

/// did_you_mean of a name in a formula, by the whole or by the last word of one that is known:
/// "model.hidden" for "hiden".
std::string did_you_mean_name(const std::string& name, const std::vector<std::string>& known);

/// All functions.
const std::vector<std::string>& formula_functions();

}  // namespace kuafu
