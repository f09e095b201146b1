// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/formula_value.h"

#include <algorithm>
#include <cmath>

#include "kuafu/base/errors.h"
#include "kuafu/base/units.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/record/table.h"

namespace kuafu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMostExact = 9007199254740992.0;  ///< whole doubles up to here are exact

std::optional<int64_t> whole_result(char op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case '+':
      return __builtin_add_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    case '-':
      return __builtin_sub_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    case '*':
      return __builtin_mul_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    default:
      break;
  }
  if (b == -1) return op == '%' ? std::optional(int64_t{0}) : whole_result('-', 0, a);
  if (op == '/') return a % b == 0 ? std::optional(a / b) : std::nullopt;
  out = a % b;
  return out != 0 && (out < 0) != (b < 0) ? out + b : out;
}

double floored_remainder(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double plain_result(char op, double a, double b) {
  return op == '+'   ? a + b
         : op == '-' ? a - b
         : op == '*' ? a * b
         : op == '/' ? a / b
                     : floored_remainder(a, b);
}

/// The four corners hold the ends of sums, differences, products and quotients.
Value corners(char op, const Value& a, const Value& b) {
  const double number = plain_result(op, a.number, b.number);
  if (a.is_point() && b.is_point()) return Value::real(number);
  if (op == '%') return Value::within(number, std::min(0.0, b.low), std::max(0.0, b.high));
  if (op == '/' && b.low <= 0 && b.high >= 0) return Value::within(number, -kInfinity, kInfinity);
  double low = kInfinity, high = -kInfinity;
  for (const double x : {a.low, a.high}) {
    for (const double y : {b.low, b.high}) {
      const double corner = plain_result(op, x, y);
      if (std::isnan(corner)) return Value::within(number, -kInfinity, kInfinity);
      low = std::min(low, corner);
      high = std::max(high, corner);
    }
  }
  return Value::within(number, low, high);
}

Value undecided(const std::string& op, const Value& a, const Value& b) {
  return Value::absent(
      kuafu::text("undecided within the 95 % intervals: ", a.shown(), " ", op, " ", b.shown()));
}

/// yes or no where both ends agree.
Value decided(const std::string& op, const Value& a, const Value& b, bool is_surely,
              bool is_possibly) {
  if (is_surely == is_possibly) return Value::truth(is_surely);
  return undecided(op, a, b);
}

/// a == b: |a - b| <= tolerance |b| + the reach of the intervals.
Value equality(const std::string& op, const Value& a, const Value& b, double tolerance) {
  const double slack = tolerance * std::abs(b.number);
  if (a.is_point() && b.is_point()) {
    if (a.integer && b.integer && tolerance == 0) return Value::truth(*a.integer == *b.integer);
    return Value::truth(std::abs(a.number - b.number) <= slack);
  }
  const double least = std::max({0.0, a.low - b.high, b.low - a.high});
  const double most = std::max(a.high - b.low, b.high - a.low);
  return decided(op, a, b, most <= slack, least <= slack);
}

Value order(const std::string& op, const Value& a, const Value& b, double tolerance) {
  const bool is_less = op[0] == '<';
  const double slack = tolerance * std::abs(b.number) * (is_less ? 1 : -1);
  if (a.integer && b.integer && slack == 0) {
    const int64_t x = *a.integer, y = *b.integer;
    return Value::truth(op == "<" ? x < y : op == "<=" ? x <= y : op == ">" ? x > y : x >= y);
  }
  const auto holds = [&](double x, double y) {
    return op == "<" ? x < y : op == "<=" ? x <= y : op == ">" ? x > y : x >= y;
  };
  const bool is_surely = is_less ? holds(a.high, b.low + slack) : holds(a.low, b.high + slack);
  const bool is_possibly = is_less ? holds(a.low, b.high + slack) : holds(a.high, b.low + slack);
  return decided(op, a, b, is_surely, is_possibly);
}

/// Of a function that only rises.
Value rising(const Value& a, double (*function)(double)) {
  const Value out = Value::within(function(a.number), function(a.low), function(a.high));
  return out;
}

}  // namespace

std::optional<Value> no_numbers(const std::string& what, const std::vector<Value>& values) {
  for (const Value& v : values) {
    if (v.is_absent()) return v;
  }
  for (const Value& v : values) {
    if (!v.is_number()) {
      return Value::absent(kuafu::text(what, " wants numbers, and ", v.shown(), " is ",
                                       v.kind == Value::Kind::kText ? "a text" : "true or false"));
    }
  }
  return std::nullopt;
}

Value Value::absent(std::string why) {
  Value v;
  v.words = std::move(why);
  return v;
}

Value Value::whole(int64_t number) {
  Value v;
  v.kind = Kind::kNumber;
  v.integer = number;
  v.number = v.low = v.high = static_cast<double>(number);
  return v;
}

Value Value::real(double number) { return within(number, number, number); }

Value Value::within(double number, double low, double high) {
  if (!std::isfinite(number)) return absent("no finite number");
  Value v;
  v.kind = Kind::kNumber;
  v.number = number;
  v.low = std::isnan(low) ? -kInfinity : std::min(low, number);
  v.high = std::isnan(high) ? kInfinity : std::max(high, number);
  return v;
}

Value Value::truth(bool is_true) {
  Value v;
  v.kind = Kind::kTruth;
  v.is_yes = is_true;
  return v;
}

Value Value::text(std::string text) {
  Value v;
  v.kind = Kind::kText;
  v.words = std::move(text);
  return v;
}

Value Value::of(const Json& json, const std::string& name) {
  if (json.is_boolean()) return truth(json.get<bool>());
  if (json.is_string()) return text(json.get<std::string>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX)
    return real(json.get<double>());
  if (json.is_number_integer()) return whole(json.get<int64_t>());
  if (json.is_number()) return real(json.get<double>());
  return absent(kuafu::text(name, json.is_null()    ? " is not recorded"
                                  : json.is_array() ? " is a list; ask for its first, last, max, "
                                                      "sum or an index"
                                                    : " is no single value"));
}

Json Value::json() const {
  switch (kind) {
    case Kind::kAbsent:
      return nullptr;
    case Kind::kTruth:
      return is_yes;
    case Kind::kText:
      return words;
    case Kind::kNumber:
      break;
  }
  if (integer) return *integer;
  if (std::abs(number) <= kMostExact && std::trunc(number) == number) {
    return static_cast<int64_t>(number);
  }
  return number;
}

std::string Value::shown(const std::string& unit) const {
  switch (kind) {
    case Kind::kAbsent:
      return "-";
    case Kind::kTruth:
      return is_yes ? "yes" : "no";
    case Kind::kText:
      return words;
    case Kind::kNumber:
      break;
  }
  const auto told = [&](double x) {
    if (unit == "s") return print_seconds(x);
    if (unit == "B" && std::abs(x) < kMostExact) return print_bytes(std::llround(x));
    return human_number(x, 4);
  };
  const Json plain = json();
  const std::string value =
      unit != "s" && unit != "B" && plain.is_number_integer() ? plain.dump() : told(number);
  if (is_point()) return value;
  return kuafu::text(value, " (", told(low), " to ", told(high), ")");
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (const auto why = no_numbers(op, {a, b})) return *why;
  const char sign = op[0];
  if ((sign == '/' || sign == '%') && b.number == 0) {
    return Value::absent(text("division by zero: ", a.shown(), " ", op, " ", b.shown()));
  }
  const bool is_one_measurement = !a.origin.empty() && a.origin == b.origin;
  if (is_one_measurement && sign == '/') return Value::whole(1);
  if (is_one_measurement && sign == '-') return Value::whole(0);
  if (a.integer && b.integer) {
    const auto whole = whole_result(sign, *a.integer, *b.integer);
    if (whole) return Value::whole(*whole);
  }
  return corners(sign, a, b);
}

Value comparison(const std::string& op, const Value& a, const Value& b, double tolerance) {
  if (a.is_absent()) return a;
  if (b.is_absent()) return b;
  if (op == "!=") return negation(comparison("==", a, b, tolerance));
  if (op == "==" && (!a.is_number() || !b.is_number())) {
    if (a.kind != b.kind) return Value::truth(false);
    return Value::truth(a.kind == Value::Kind::kText ? a.words == b.words : a.is_yes == b.is_yes);
  }
  if (const auto why = no_numbers(op, {a, b})) return *why;
  return op == "==" ? equality(op, a, b, tolerance) : order(op, a, b, tolerance);
}

Value both(const Value& a, const Value& b) {
  if (a.is_false() || b.is_false()) return Value::truth(false);
  for (const Value* v : {&a, &b}) {
    if (v->is_absent()) return *v;
    if (v->kind != Value::Kind::kTruth) {
      return Value::absent(v->shown() + " is neither true nor false");
    }
  }
  return Value::truth(true);
}

Value either(const Value& a, const Value& b) { return negation(both(negation(a), negation(b))); }

Value negation(const Value& a) {
  if (a.is_absent()) return a;
  if (a.kind != Value::Kind::kTruth) return Value::absent(a.shown() + " is neither true nor false");
  return Value::truth(!a.is_yes);
}

Value of_one(const std::string& function, const Value& a) {
  if (const auto why = no_numbers(function, {a})) return *why;
  if (function == "abs") {
    if (a.integer && *a.integer != INT64_MIN) return Value::whole(std::abs(*a.integer));
    const double low = a.low <= 0 && a.high >= 0 ? 0 : std::min(std::abs(a.low), std::abs(a.high));
    return Value::within(std::abs(a.number), low, std::max(std::abs(a.low), std::abs(a.high)));
  }
  if (function == "sqrt") {
    if (a.number < 0) return Value::absent("sqrt of " + a.shown());
    return rising(a, [](double x) { return std::sqrt(std::max(x, 0.0)); });
  }
  if (function == "log2") {
    if (a.number <= 0) return Value::absent("log2 of " + a.shown());
    return rising(a, [](double x) { return x > 0 ? std::log2(x) : -kInfinity; });
  }
  if (a.integer) return a;
  if (function == "ceil") return rising(a, [](double x) { return std::ceil(x); });
  if (function == "floor") return rising(a, [](double x) { return std::floor(x); });
  return rising(a, [](double x) { return std::round(x); });
}

}  // namespace kuafu
