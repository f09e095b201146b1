// SPDX-License-Identifier: Apache-2.0
//
// In which unit a formula's value is told.

#include <algorithm>
#include <array>
#include <string_view>

#include "kuafu/experiment/formula.h"

namespace kuafu {
namespace {

using Kind = FormulaNode::Kind;

/// Whether a call's value is of its operands' kind.
bool keeps_unit(const std::string& function) {
  constexpr std::array<std::string_view, 9> kKept = {"abs", "ceil", "floor",  "round", "min",
                                                     "max", "mean", "median", "sum"};
  return function == "at" || std::find(kKept.begin(), kKept.end(), function) != kKept.end();
}

}  // namespace

std::string unit_of(const FormulaNode& node, const FormulaScope& scope) {
  if (node.kind == Kind::kName) return scope.unit(node.word);
  const bool is_call = node.kind == Kind::kCall;
  if (node.parts.empty() || (is_call && !keeps_unit(node.word))) return "";
  const std::string first = unit_of(node.parts[0], scope);
  const auto is_number = [&](size_t i) { return node.parts[i].kind == Kind::kLiteral; };
  if (node.kind == Kind::kBinary && (node.word == "*" || node.word == "/")) {
    if (is_number(1)) return first;
    return node.word == "*" && is_number(0) ? unit_of(node.parts[1], scope) : "";
  }
  const bool is_sum = node.kind == Kind::kBinary && (node.word == "+" || node.word == "-");
  if (!is_call && !is_sum && node.kind != Kind::kSign) return "";
  const bool is_same = std::all_of(node.parts.begin(), node.parts.end(), [&](const FormulaNode& p) {
    return unit_of(p, scope) == first;
  });
  return is_same ? first : "";
}

}  // namespace kuafu
