// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/rows.h"
#include "kuafu/experiment/verdict.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

/// Element by element; an absent side counts nothing.
Json added(const Json& a, const Json& b) {
  if (a.is_null()) return b;
  if (b.is_null()) return a;
  if (a.is_number_integer() && b.is_number_integer()) return a.get<int64_t>() + b.get<int64_t>();
  if (a.is_number() && b.is_number()) return a.get<double>() + b.get<double>();
  if (!a.is_array() || !b.is_array() || a.size() != b.size()) return nullptr;
  Json out = Json::array();
  for (size_t i = 0; i < a.size(); ++i) out.push_back(added(a[i], b[i]));
  return out;
}

/// The sum of what `rest` leads to under every name of `object`.
Json sum_under(const Json& object, const std::string& rest) {
  // A list is summed before its element is taken: the most of any rank, over all axes.
  const size_t dot = rest.rfind('.');
  const std::string last = dot == std::string::npos ? "" : rest.substr(dot + 1);
  const bool is_element =
      last == "first" || last == "last" || last == "max" || last == "sum" ||
      (!last.empty() && last.find_first_not_of("0123456789") == std::string::npos);
  const std::string path = is_element ? rest.substr(0, dot) : rest;
  Json sum;
  for (const auto& [name, under] : object.items()) {
    const size_t star = path.find("*.");
    sum = added(sum,
                star == std::string::npos
                    ? value_at(under, path)
                    : sum_under(value_at(under, path.substr(0, star - 1)), path.substr(star + 2)));
  }
  if (sum.is_null()) return 0;
  if (!is_element || !sum.is_array()) return sum;
  return value_at(Json{{"list", sum}}, "list." + last);
}

Json plain_field(const Json& document, const std::string& path) {
  const size_t star = path.find(".*.");
  if (star == std::string::npos) return value_at(document, path);
  const Json object = value_at(document, path.substr(0, star));
  return object.is_object() ? sum_under(object, path.substr(star + 3)) : Json(nullptr);
}

constexpr const char* kStepTime = "step_time_s.median";

/// The median of a step time in seconds with its interval, which has no ends where too few steps give
/// one; none where there is no time.
std::optional<Value> step_time_in(const Json& part) {
  const auto at = [&](const char* path) { return value_at(part, path); };
  const Json median = at(kStepTime), low = at("step_time_s.ci95.0"),
             high = at("step_time_s.ci95.1");
  if (!median.is_number()) return std::nullopt;
  if (!low.is_number() || !high.is_number()) {
    return Value::within(median.get<double>(), 0, std::numeric_limits<double>::infinity());
  }
  return Value::within(median.get<double>(), low.get<double>(), high.get<double>());
}

/// Of all rounds, else of the document's process.
std::optional<Value> step_time(const Json& line) {
  for (const char* place : {"timing", "document"}) {
    if (auto time = step_time_in(value_at(line, place))) return time;
  }
  return std::nullopt;
}

/// A time or a rate in one pass. Of a line without rounds it is in each what it is in all, where it
/// is exact (simulated), and else absent: one process is not several.
Value value_in_pass(const Json& line, const std::string& path, const Pass& pass) {
  const Json rounds = value_at(line, "rounds");
  if (!rounds.is_array()) {
    const Value of_all = field_value(line, path);
    return of_all.is_number() && !of_all.is_point() ? Value::absent(path + " is of one process")
                                                    : of_all;
  }
  for (const Json& one : rounds) {
    if (pass_of(one) != pass) continue;
    auto time = step_time_in(one);
    if (!time) break;
    // Too few steps for an interval: what the rounds differ by is all that is known.
    if (!std::isfinite(time->high)) time = Value::of(value_at(one, kStepTime), path);
    if (path == kStepTime) return *time;
    const Value rate = Value::of(value_at(one, path), path);
    const Value tokens = arithmetic("*", rate, Value::of(value_at(one, kStepTime), path));
    return arithmetic("/", tokens, *time);
  }
  return Value::absent(text(path, " was not measured in round ", pass.round,
                            pass.sweep.empty() ? "" : " of call " + pass.sweep));
}

}  // namespace

Value field_value(const Json& line, const std::string& path, const Pass& pass) {
  const Json& document = line["document"];
  if (pass != Rows::kAllRounds && (path == kStepTime || path == "tokens_per_s")) {
    return value_in_pass(line, path, pass);
  }
  if (path == kStepTime) {
    if (const auto time = step_time(line)) return *time;
  }
  if (path == "status") {  // as tables have it
    return Value::of(status_words(line["status"].get<std::string>(), document), path);
  }
  const Value plain = Value::of(plain_field(document, path), path);
  if (path != "tokens_per_s" || !plain.is_number()) return plain;
  const Json median = value_at(document, kStepTime);
  const auto time = step_time(line);
  if (!median.is_number() || !time) return plain;
  return arithmetic("/", arithmetic("*", plain, Value::of(median, path)), *time);
}

}  // namespace kuafu
