// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/derived.h"

#include <filesystem>

#include "kuafu/base/errors.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

void put(Json& json, const char* key, const std::string& value) {
  if (!value.empty()) json[key] = value;
}

void put(Json& json, const Picked& where) {
  if (!where.values.empty()) {
    Json& values = json["where"];
    for (const auto& [key, allowed] : where.values) values[key] = allowed;
  }
  put(json, "where_formula", where.formula);
}

std::string text_in(const Json& json, const char* key) { return json.value(key, ""); }

Picked picked_in(const Json& json) {
  Picked where;
  where.formula = text_in(json, "where_formula");
  if (!json.contains("where")) return where;
  for (const auto& [key, allowed] : json["where"].items()) {
    where.values.emplace_back(key, allowed.get<std::vector<Json>>());
  }
  return where;
}

Json list_in(const Json& json, const char* key) { return json.value(key, Json::array()); }

std::map<std::string, std::set<std::string>> sets_in(const Json& json, const char* key) {
  std::map<std::string, std::set<std::string>> out;
  const Json object = json.value(key, Json::object());
  for (const auto& [name, keys] : object.items()) out[name] = keys.get<std::set<std::string>>();
  return out;
}

Derived read(const Json& json) {
  Derived out;
  out.origin = text_in(json, "suite");
  for (const Json& c : list_in(json, "columns")) {
    out.columns.push_back({c.at("name").get<std::string>(), c.at("formula").get<std::string>(),
                           text_in(c, "unit"), c.value("line", 0)});
  }
  for (const Json& c : list_in(json, "claims")) {
    out.claims.push_back({c.at("name").get<std::string>(), c.at("formula").get<std::string>(),
                          c.at("source").get<std::string>(), picked_in(c), c.value("within", 0.0),
                          c.value("line", 0)});
  }
  for (const Json& f : list_in(json, "figures")) {
    out.figures.push_back({text_in(f, "kind"), text_in(f, "title"), text_in(f, "x"),
                           text_in(f, "y"), text_in(f, "z"), text_in(f, "by"), text_in(f, "log"),
                           picked_in(f), text_in(f, "script"), f.value("line", 0)});
  }
  out.row_keys = sets_in(json, "row_keys");
  out.follows = sets_in(json, "follows");
  return out;
}

/// What is computed, wherever it is written.
Json without_places(Json derived) {
  if (!derived.is_object()) return derived;
  derived.erase("suite");
  for (const char* const kind : {"columns", "claims", "figures"}) {
    if (!derived.contains(kind)) continue;
    for (Json& row : derived[kind]) row.erase("line");
  }
  return derived;
}

}  // namespace

Json to_json(const Derived& derived) {
  // Of the path only the name: a suite called from elsewhere is the same.
  Json out = {{"suite", std::filesystem::path(derived.origin).filename().string()}};
  for (const Column& c : derived.columns) {
    Json& row = out["columns"].emplace_back(
        Json{{"name", c.name}, {"formula", c.formula}, {"line", c.line}});
    put(row, "unit", c.unit);
  }
  for (const Claim& c : derived.claims) {
    Json& row = out["claims"].emplace_back(
        Json{{"name", c.name}, {"formula", c.formula}, {"source", c.source}, {"line", c.line}});
    put(row, c.where);
    if (c.tolerance > 0) row["within"] = c.tolerance;
  }
  for (const FigureSpec& f : derived.figures) {
    Json& row = out["figures"].emplace_back(Json{{"line", f.line}});
    for (const auto& [key, value] : {std::pair{"kind", &f.kind},
                                     {"title", &f.title},
                                     {"x", &f.x},
                                     {"y", &f.y},
                                     {"z", &f.z},
                                     {"by", &f.by},
                                     {"log", &f.log},
                                     {"script", &f.script}}) {
      put(row, key, *value);
    }
    put(row, f.where);
  }
  for (const auto& [axis, keys] : derived.row_keys) out["row_keys"][axis] = keys;
  for (const auto& [key, names] : derived.follows) out["follows"][key] = names;
  return out;
}

Derived derived_of(const Json& json, const std::string& origin) {
  try {
    return read(json);
  } catch (const Json::exception& error) {
    throw ConfigError(text(origin, ": its columns, claims or figures: ", words_of(error),
                           "; give --suite SUITE.toml, whose own are taken"));
  }
}

bool renew_derived(Json& header, const Derived& derived) {
  const Json before = header.value("derived", Json());
  const Json now = derived.is_empty() ? Json() : to_json(derived);
  header.erase("derived");
  if (!now.is_null()) header["derived"] = now;
  return without_places(before) != without_places(now);
}

}  // namespace kuafu
