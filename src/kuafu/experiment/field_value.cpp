// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/rows.h"
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

/// Median and interval in seconds of a line: of all rounds, else of the document's process.
std::optional<Value> step_time(const Json& line) {
  for (const char* place : {"timing.step_time_s", "document.step_time_s"}) {
    const auto at = [&](const char* part) { return value_at(line, text(place, part)); };
    const Json median = at(".median"), low = at(".ci95.0"), high = at(".ci95.1");
    if (!median.is_number()) continue;
    if (!low.is_number() || !high.is_number()) return Value::of(median, "step_time_s.median");
    return Value::within(median.get<double>(), low.get<double>(), high.get<double>());
  }
  return std::nullopt;
}

}  // namespace

Value field_value(const Json& line, const std::string& path) {
  const Json& document = line["document"];
  if (path == "step_time_s.median") {
    if (const auto time = step_time(line)) return *time;
  }
  const Value plain = Value::of(plain_field(document, path), path);
  if (path != "tokens_per_s" || !plain.is_number()) return plain;
  const Json median = value_at(document, "step_time_s.median");
  const auto time = step_time(line);
  if (!median.is_number() || !time) return plain;
  return arithmetic("/", arithmetic("*", plain, Value::of(median, path)), *time);
}

}  // namespace kuafu
