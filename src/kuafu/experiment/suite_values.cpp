// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/suite_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace kuafu {
namespace {

using Kind = ConfigValue::Kind;

}  // namespace

std::optional<Json> json_value(const ConfigValue& value) {
  switch (value.kind) {
    case Kind::kInteger:
      return value.integer;
    case Kind::kNumber:
      return value.number;
    case Kind::kBoolean:
      return value.boolean;
    case Kind::kString:
      return value.string;
    case Kind::kList:
      break;
    default:
      return std::nullopt;
  }
  Json list = Json::array();
  for (const auto& item : value.items) {
    const auto one = json_value(item);
    if (!one) return std::nullopt;
    list.push_back(*one);
  }
  return list;
}

const ConfigValue* find_dotted(const ConfigValue& table, const std::string& key) {
  const ConfigValue* at = &table;
  for (size_t begin = 0; at != nullptr && begin <= key.size();) {
    const size_t dot = std::min(key.find('.', begin), key.size());
    at = at->find(key.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return at;
}

Json SuiteValues::scalar(const ConfigValue& value) const {
  const auto json = json_value(value);
  require(json && value.kind != Kind::kList, value.line, "expected a single value, given ",
          to_string(value));
  return *json;
}

std::vector<Json> SuiteValues::scalars(const ConfigValue& value) const {
  if (value.kind != Kind::kList) return {scalar(value)};
  std::vector<Json> list;
  for (const auto& item : value.items) list.push_back(scalar(item));
  return list;
}

std::string SuiteValues::string(const ConfigValue& value, const std::string& key) const {
  require(value.kind == Kind::kString && !value.string.empty(), value.line, key,
          ": expected text, given ", to_string(value));
  const bool is_plain = std::none_of(value.string.begin(), value.string.end(), [&](char c) {
    const bool is_space = (c == '\n' || c == '\t') && key != "name";
    return !is_space && std::iscntrl(static_cast<unsigned char>(c)) != 0;
  });
  require(is_plain, value.line, key, ": has control characters: ", to_string(value));
  return value.string;
}

std::vector<std::string> SuiteValues::strings(const ConfigValue& value,
                                              const std::string& key) const {
  require(value.kind == Kind::kList && !value.items.empty(), value.line, key,
          ": expected a list of texts, given ", to_string(value));
  std::vector<std::string> list;
  for (const auto& item : value.items) list.push_back(string(item, key));
  return list;
}

std::vector<int64_t> SuiteValues::whole_numbers(const ConfigValue& value, const std::string& key,
                                                int64_t least) const {
  std::vector<int64_t> list;
  for (const Json& number : scalars(value)) {
    require(number.is_number_integer() && number.get<int64_t>() >= least, value.line, key,
            ": expected whole numbers from ", least, ", given ", to_string(value));
    list.push_back(number.get<int64_t>());
  }
  return list;
}

double SuiteValues::number(const ConfigValue& value, const std::string& key,
                           const char* expected) const {
  const bool is_number = value.kind == Kind::kInteger || value.kind == Kind::kNumber;
  const double number =
      value.kind == Kind::kInteger ? static_cast<double>(value.integer) : value.number;
  require(is_number && std::isfinite(number) && number >= 0, value.line, key, ": expected ",
          expected, ", given ", to_string(value));
  return number;
}

double SuiteValues::seconds(const ConfigValue& value, const std::string& key) const {
  constexpr const char* kExpected = "a positive number of seconds without a unit, such as 120";
  const double seconds = number(value, key, kExpected);
  require(seconds > 0, value.line, key, ": expected ", kExpected, ", given ", to_string(value));
  return seconds;
}

double SuiteValues::tolerance(const ConfigValue& value, const std::string& key) const {
  return number(value, key, "a relative tolerance, 0 or more");
}

bool SuiteValues::boolean(const ConfigValue& value, const std::string& key) const {
  require(value.kind == Kind::kBoolean, value.line, key, ": expected true or false, given ",
          to_string(value));
  return value.boolean;
}

Settings SuiteValues::single_settings(const ConfigValue& table, const std::string& name) const {
  require(table.kind == Kind::kTable, table.line, name, ": expected a table { key = value }");
  std::vector<SweptKey> choices;
  for (const auto& [key, value] : table.entries) collect(value, key, choices);
  Settings settings;
  for (const SweptKey& choice : choices) {
    require(choice.values.size() == 1, choice.line, name, ".", choice.key,
            ": expected one value, given ", choice.values.size(),
            "; allowed: one, and another table for each of the others");
    settings.emplace_back(choice.key, choice.values.front());
  }
  return settings;
}

void SuiteValues::collect(const ConfigValue& value, const std::string& key,
                          std::vector<SweptKey>& choices) const {
  if (value.kind == Kind::kTable) {
    for (const auto& [name, inner] : value.entries) collect(inner, key + "." + name, choices);
    return;
  }
  require(value.kind != Kind::kList || !value.items.empty(), value.line, key, ": an empty list");
  choices.push_back({key, scalars(value), value.line});
}

}  // namespace kuafu
