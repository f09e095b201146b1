// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/experiment/formula_value.h"

namespace kuafu {
namespace {

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double ascending_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

/// A measure of all of them, of their low ends and of their high ends.
Value measured(const std::vector<Value>& values, double (*measure)(std::vector<double>)) {
  std::vector<double> numbers, lows, highs;
  for (const Value& v : values) {
    numbers.push_back(v.number);
    lows.push_back(v.low);
    highs.push_back(v.high);
  }
  return Value::within(measure(numbers), measure(lows), measure(highs));
}

Value extreme(const std::vector<Value>& values, bool is_least) {
  Value best = values.front();
  for (const Value& v : values) {
    const Value before = best;
    if (is_least ? v.number < before.number : v.number > before.number) best = v;
    best.low = is_least ? std::min(v.low, before.low) : std::max(v.low, before.low);
    best.high = is_least ? std::min(v.high, before.high) : std::max(v.high, before.high);
  }
  return best;
}

}  // namespace

Value of_many(const std::string& function, const std::vector<Value>& values) {
  if (function == "all" || function == "any") {
    Value out = Value::truth(function == "all");
    for (const Value& v : values) out = function == "all" ? both(out, v) : either(out, v);
    return out;
  }
  if (function == "sum") {
    Value out = Value::whole(0);
    for (const Value& v : values) out = arithmetic("+", out, v);
    return out;
  }
  if (const auto why = no_numbers(function, values)) return *why;
  if (values.empty()) return Value::absent(function + " of no row");
  if (function == "min" || function == "max") return extreme(values, function == "min");
  if (function == "median")
    return measured(values, [](std::vector<double> v) { return middle(v); });
  return measured(values, [](std::vector<double> v) { return ascending_mean(v); });
}

}  // namespace kuafu
