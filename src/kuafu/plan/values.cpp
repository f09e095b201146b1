// SPDX-License-Identifier: Apache-2.0
#include "kuafu/plan/values.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/units.h"

namespace kuafu::plan {
namespace {

using Kind = ConfigValue::Kind;

struct Offence {
  const Key& key;
  const ConfigValue& value;
  std::string_view where;

  /// "plan.toml:7: model.layers = 0 <problem>; allowed: ...; nearest: ..."
  [[noreturn]] void fail(const std::string& problem, const std::string& nearest_value) const {
    std::string message =
        text(where, key.name, " = ", to_string(value), " ", problem, "; allowed: ", allowed(key));
    if (!nearest_value.empty()) message += "; nearest: " + nearest_value;
    throw ConfigError(message);
  }

  [[noreturn]] void wrong_type(const std::string& nearest_value = {}) const {
    fail(text("is ", describe(value.kind)), nearest_value);
  }
};

bool is_inside(const Limits& range, double x) {
  return (range.is_open_below ? x > range.from : x >= range.from) &&
         (range.is_open ? x < range.to : x <= range.to);
}

/// The nearest end of the range; an open end has no nearest number, so 0.9 of an upper and a
/// millionth above a lower one stand in.
double clamped(const Limits& range, double x) {
  if (range.is_open && !(x < range.to)) return 0.9 * range.to;
  if (range.is_open_below && !(x > range.from)) return range.from + 1e-6;
  return std::clamp(x, range.from, range.to);
}

std::string nearest_integer(const Key& key, double x) {
  if (std::isnan(x)) return {};
  return text(static_cast<int64_t>(std::llround(clamped(key.range, std::round(x)))));
}

/// The number inside a string, as in "4"; NaN where there is none.
double number_inside(const ConfigValue& value) {
  const auto inside = value.kind == Kind::kString ? parse_toml_value(value.string) : std::nullopt;
  if (inside && inside->kind == Kind::kInteger) return static_cast<double>(inside->integer);
  if (inside && inside->kind == Kind::kNumber) return inside->number;
  return std::nan("");
}

/// A number that TOML has no place for, such as 1e999 or 99999999999999999999: not finite, or the number;
/// nothing where it is none.
std::optional<double> beyond_toml(const ConfigValue& value) {
  if (value.kind != Kind::kString || value.string.empty() || parse_toml_value(value.string))
    return {};
  char* end = nullptr;
  const double x = std::strtod(value.string.c_str(), &end);
  if (*end != '\0' || std::isnan(x)) return {};
  return x;
}

int64_t integer(const Offence& offence) {
  const auto& [key, value, where] = offence;
  if (const auto x = beyond_toml(value)) offence.fail("is out of range", nearest_integer(key, *x));
  if (value.kind == Kind::kNumber) offence.wrong_type(nearest_integer(key, value.number));
  if (value.kind != Kind::kInteger) offence.wrong_type(nearest_integer(key, number_inside(value)));
  const auto x = static_cast<double>(value.integer);
  if (!is_inside(key.range, x)) offence.fail("is out of range", nearest_integer(key, x));
  return value.integer;
}

int64_t auto_integer(const Offence& offence) {
  if (offence.value.kind != Kind::kString) return integer(offence);
  if (offence.value.string != "auto") offence.wrong_type(in_quotes("auto"));
  return 0;
}

/// A size with the nearest unit, for "6 XB"; empty where no number opens the text.
std::string nearest_size(const std::string& given) {
  const size_t split = given.find_first_not_of("0123456789. ");
  const size_t last = given.find_last_of("0123456789", split);
  if (split == std::string::npos || last == std::string::npos || last > split) return {};
  const std::string unit =
      nearest(given.substr(split), {"GB", "MB", "kB", "TB", "B", "GiB", "MiB", "KiB", "TiB"});
  return in_quotes(given.substr(0, last + 1) + " " + unit);
}

int64_t bytes(const Offence& offence) {
  if (offence.value.kind != Kind::kString) return integer(offence);
  int64_t size = 0;
  try {
    size = parse_bytes(offence.value.string);
  } catch (const ConfigError&) {
    offence.fail("is no size", nearest_size(offence.value.string));
  }
  if (!is_inside(offence.key.range, static_cast<double>(size))) {
    offence.fail("is out of range", nearest_integer(offence.key, static_cast<double>(size)));
  }
  return size;
}

double number(const Offence& offence) {
  const auto& [key, value, where] = offence;
  if (const auto x = beyond_toml(value)) {
    offence.fail("is out of range", toml_number(clamped(key.range, *x)));
  }
  if (value.kind != Kind::kNumber && value.kind != Kind::kInteger) {
    const double inside = number_inside(value);
    offence.wrong_type(std::isfinite(inside) ? toml_number(clamped(key.range, inside)) : "");
  }
  const double x = value.kind == Kind::kNumber ? value.number : static_cast<double>(value.integer);
  if (std::isnan(x)) offence.fail("is not finite", {});
  const double legal = clamped(key.range, x);
  if (std::isinf(x)) offence.fail("is not finite", toml_number(legal));
  if (!is_inside(key.range, x)) offence.fail("is out of range", toml_number(legal));
  return x;
}

double scale(const Offence& offence) {
  const auto& [key, value, where] = offence;
  if (value.kind == Kind::kString && !std::isfinite(number_inside(value))) {
    if (value.string == "auto") return TrainPlan::kAutoScale;
    if (value.string == "dynamic") return TrainPlan::kDynamicScale;
    offence.fail("is not allowed", in_quotes(nearest(value.string, {"dynamic", "auto"})));
  }
  const bool is_zero = (value.kind == Kind::kInteger && value.integer == 0) ||
                       (value.kind == Kind::kNumber && value.number == 0);
  return is_zero ? TrainPlan::kAutoScale : number(offence);
}

const std::string& string(const Offence& offence) {
  if (offence.value.kind != Kind::kString) offence.wrong_type();
  // The system's calls would take the text before it.
  if (offence.value.string.find('\0') != std::string::npos) offence.fail("holds a NUL byte", {});
  return offence.value.string;
}

const std::string& choice(const Offence& offence) {
  const std::vector<std::string>& choices = offence.key.choices;
  if (offence.value.kind != Kind::kString) {
    offence.wrong_type(in_quotes(nearest(to_string(offence.value), choices)));
  }
  const std::string& given = offence.value.string;
  if (std::find(choices.begin(), choices.end(), given) == choices.end()) {
    offence.fail("is not allowed", in_quotes(nearest(given, choices)));
  }
  return given;
}

std::vector<int64_t> integers(const Offence& offence) {
  if (offence.value.kind != Kind::kList) offence.wrong_type();
  std::vector<int64_t> out;
  for (const ConfigValue& item : offence.value.items) {
    out.push_back(integer({offence.key, item, offence.where}));
  }
  return out;
}

struct Assigner {
  const Offence& offence;

  void operator()(int64_t* slot) const {
    const Form form = offence.key.form;
    *slot = form == Form::kAutoInteger ? auto_integer(offence)
            : form == Form::kBytes     ? bytes(offence)
                                       : integer(offence);
  }
  void operator()(uint64_t* slot) const { *slot = static_cast<uint64_t>(integer(offence)); }
  void operator()(double* slot) const {
    *slot = offence.key.form == Form::kScale ? scale(offence) : number(offence);
  }
  void operator()(bool* slot) const {
    if (offence.value.kind == Kind::kString) {
      offence.wrong_type(nearest(offence.value.string, {"true", "false"}));
    }
    if (offence.value.kind != Kind::kBoolean) offence.wrong_type();
    *slot = offence.value.boolean;
  }
  void operator()(std::string* slot) const {
    *slot = offence.key.form == Form::kChoice ? choice(offence) : string(offence);
  }
  void operator()(std::vector<int64_t>* slot) const { *slot = integers(offence); }
  void operator()(DType* slot) const { *slot = dtype_from(choice(offence)); }
  void operator()(Recompute* slot) const {
    const std::string& given = choice(offence);
    *slot = given == "none"        ? Recompute::kNone
            : given == "selective" ? Recompute::kSelective
                                   : Recompute::kFull;
  }
  void operator()(std::optional<int64_t>* slot) const {
    const bool is_unlimited =
        offence.value.kind == Kind::kString && offence.value.string == "unlimited";
    *slot = is_unlimited ? std::nullopt : std::optional<int64_t>(bytes(offence));
  }
};

}  // namespace

void assign(const Key& key, const ConfigValue& value, std::string_view where, Plan& plan) {
  const Offence offence{key, value, where};
  std::visit(Assigner{offence}, key.member(plan));
}

void check_values(const Plan& plan) {
  Plan copy = plan;
  for (const Key& key : keys()) {
    const std::optional<ConfigValue> value = parse_toml_value(print(key, plan));
    KUAFU_REQUIRE(value.has_value(), key.name, " = ", print(key, plan),
                  " cannot be written as TOML; allowed: ", allowed(key));
    assign(key, *value, "", copy);
  }
}

}  // namespace kuafu::plan
