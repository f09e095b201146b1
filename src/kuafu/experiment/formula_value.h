// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/record/json.h"

namespace kuafu {

/// What a formula is worth. A number knows the interval it lies in: what was measured has one wider
/// than a point, and arithmetic carries it on. A comparison whose intervals overlap is absent.
struct Value {
  enum class Kind : uint8_t { kAbsent, kNumber, kTruth, kText };

  static Value absent(std::string why);
  static Value whole(int64_t number);
  /// Absent where it is no finite number.
  static Value real(double number);
  static Value within(double number, double low, double high);
  static Value truth(bool is_true);
  static Value text(std::string text);
  /// Null, a list or an object is absent; `name` is for the reason.
  static Value of(const Json& json, const std::string& name);

  bool is_absent() const { return kind == Kind::kAbsent; }
  bool is_number() const { return kind == Kind::kNumber; }
  bool is_true() const { return kind == Kind::kTruth && is_yes; }
  bool is_false() const { return kind == Kind::kTruth && !is_yes; }
  bool is_point() const { return low == number && high == number; }

  /// Whole numbers without a point, also those of a real; null where absent.
  Json json() const;
  /// For people: "0.0123 (0.0119 to 0.0131)", "8", "yes", "1D tensor", "-"; of `unit` "B" and "s"
  /// numbers are sizes and times: "12.3 ms (11.9 ms to 13.1 ms)".
  std::string shown(const std::string& unit = "") const;

  Kind kind = Kind::kAbsent;
  std::optional<int64_t> integer;        ///< of a number that is exactly whole
  double number = 0, low = 0, high = 0;  ///< low <= number <= high
  bool is_yes = false;
  std::string origin;  ///< the case and field it was read from; empty for what is computed
  std::string words;   ///< a text, or why it is absent
};

/// `op` is one of + - * / %; what was measured once over itself is exactly 1, less itself 0. Whole operands give whole results where they exist; the remainder has
/// the sign of the divisor. Absent: a division by zero, an operand that is no number.
Value arithmetic(const std::string& op, const Value& a, const Value& b);

/// `op` is one of == != < <= > >=; `tolerance` is a share of |b| in favour of the comparison. Absent
/// where the intervals leave it open. Texts have == and != only; a text equals no number.
Value comparison(const std::string& op, const Value& a, const Value& b, double tolerance);

/// One quantity out of its values in each round: their median, and a 95 % interval of it. Of ratios on
/// logarithms, where all of them are positive. None of fewer than two rounds, and where an end is not
/// finite.
enum class Scale : uint8_t { kRatio, kDifference };
std::optional<Value> over_rounds(const std::vector<Value>& rounds, Scale scale);

/// Three-valued: absent unless one side decides.
Value both(const Value& a, const Value& b);
Value either(const Value& a, const Value& b);
Value negation(const Value& a);

/// The first of them that is absent; else why they are not all numbers, as `what` wants them.
std::optional<Value> no_numbers(const std::string& what, const std::vector<Value>& values);

/// `function` is one of abs sqrt ceil floor round log2.
Value of_one(const std::string& function, const Value& a);

/// `function` is one of min max mean median sum all any; of no value at all: absent, but for
/// sum (0), all (true) and any (false).
Value of_many(const std::string& function, const std::vector<Value>& values);

}  // namespace kuafu
