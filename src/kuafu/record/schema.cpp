// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/schema.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/worlds.h"
#include "kuafu/record/field_path.h"
#include "kuafu/record/json_text.h"

namespace kuafu {
namespace {

std::string_view describe(FieldType type) {
  switch (type) {
    case FieldType::kText:
      return "text";
    case FieldType::kInteger:
      return "integer";
    case FieldType::kNumber:
      return "number";
    case FieldType::kObject:
      return "object";
    case FieldType::kNumbers:
      return "list of numbers";
    case FieldType::kTexts:
      return "list of texts";
    case FieldType::kNumbersPerStep:
      return "list of a list of numbers a step";
    case FieldType::kInterval:
      return "list of two numbers";
    case FieldType::kPerRank:
      return "list of an integer a rank";
    case FieldType::kBytesPerRank:
      return "list of an object {name: integer} a rank";
  }
  return "";
}

std::string shown(const Json& value) { return json_excerpt(value); }

bool is_count(const Json& value) { return value.is_number_integer() && value.get<int64_t>() >= 0; }

/// Whether `value` has the type. `ranks` < 0 where unknown. Numbers that are no number (a diverged
/// loss) are written as null, in a list only.
bool has_type(const Json& value, FieldType type, int64_t ranks) {
  const auto all = [&](auto&& test) {
    return value.is_array() && std::all_of(value.begin(), value.end(), test);
  };
  const bool is_per_rank =
      value.is_array() && (ranks < 0 || static_cast<int64_t>(value.size()) == ranks);
  const auto is_number = [](const Json& v) { return v.is_number() || v.is_null(); };
  switch (type) {
    case FieldType::kText:
      return value.is_string();
    case FieldType::kInteger:
      return is_count(value);
    case FieldType::kNumber:
      return value.is_number();
    case FieldType::kObject:
      return value.is_object();
    case FieldType::kNumbers:
      return all(is_number);
    case FieldType::kTexts:
      return all([](const Json& v) { return v.is_string(); });
    case FieldType::kNumbersPerStep:
      return all([&](const Json& step) {
        return step.is_array() && std::all_of(step.begin(), step.end(), is_number);
      });
    case FieldType::kInterval:
      return all(is_number) && value.size() == 2;
    case FieldType::kPerRank:
      return is_per_rank && all(is_count);
    case FieldType::kBytesPerRank:
      return is_per_rank && all([](const Json& object) {
               return object.is_object() && std::all_of(object.begin(), object.end(), is_count);
             });
  }
  return false;
}

bool is_below_zero(const Json& value) {
  if (value.is_array()) return std::any_of(value.begin(), value.end(), is_below_zero);
  return value.is_number() && value < 0;
}

/// Walks one document along the field table and collects what is wrong.
class Checker {
 public:
  explicit Checker(const Json& document) : document_(document) {
    if (const auto it = document.find("ranks"); it != document.end() && is_count(*it)) {
      ranks_ = it->get<int64_t>();
    }
    const auto status = document.find("status");
    is_ok_ = status != document.end() && *status == "ok";
  }

  std::vector<std::string> run() {
    for (const FieldDoc& field : document_fields()) {
      check(field, parts_of(field.path), 0, document_, "");
    }
    return std::move(problems_);
  }

 private:
  void check(const FieldDoc& field, const std::vector<std::string>& parts, size_t depth,
             const Json& at, const std::string& prefix) {
    const std::string& part = parts[depth];
    if (part == "*") {
      for (const auto& [name, value] : at.items()) {
        step(field, parts, depth, value, prefix + name);
      }
      return;
    }
    const std::string path = prefix + part;
    const auto it = at.find(part);
    if (it == at.end()) {
      const bool is_due =
          field.presence == Presence::kAlways || (field.presence == Presence::kOk && is_ok_);
      if (is_due && depth + 1 == parts.size()) problems_.push_back(text(path, " is missing"));
      return;
    }
    step(field, parts, depth, *it, path);
  }

  void step(const FieldDoc& field, const std::vector<std::string>& parts, size_t depth,
            const Json& value, const std::string& path) {
    if (depth + 1 < parts.size()) {  // the parent has its own row, which says what is wrong with it
      if (value.is_object()) check(field, parts, depth + 1, value, path + ".");
      return;
    }
    if (value.is_null() && field.is_nullable) return;
    if (!has_type(value, field.type, ranks_)) {
      problems_.push_back(
          text(path, ": expected ", describe(field.type), field.is_nullable ? " or null" : "",
               ranks_ < 0 ? "" : text(" (", ranks_, " ranks)"), ", found ", shown(value)));
    } else if (field.unit == "s" && is_below_zero(value)) {
      problems_.push_back(text(path, ": expected no time below 0, found ", shown(value)));
    }
  }

  const Json& document_;
  int64_t ranks_ = -1;
  bool is_ok_ = false;
  std::vector<std::string> problems_;
};

bool is_known(const std::vector<std::string>& path) {
  for (const FieldDoc& field : document_fields()) {
    const auto parts = parts_of(field.path);
    if (parts.size() < path.size()) continue;
    bool is_same = true;
    for (size_t i = 0; i < path.size() && is_same; ++i) {
      is_same = parts[i] == "*" || parts[i] == path[i];
    }
    if (is_same) return true;
  }
  return false;
}

void collect_unknown(const Json& at, std::vector<std::string>& path,
                     std::vector<std::string>& unknown) {
  for (const auto& [name, value] : at.items()) {
    path.push_back(name);
    if (!is_known(path)) {
      std::string joined;
      for (const auto& part : path) joined += (joined.empty() ? "" : ".") + part;
      unknown.push_back(joined);
    } else if (value.is_object() && path[0] != "plan" && path[0] != "provenance") {
      collect_unknown(value, path, unknown);
    }
    path.pop_back();
  }
}

void check_one_of(const Json& document, const char* name, const std::vector<std::string>& allowed,
                  std::vector<std::string>& problems) {
  const Json value = value_at(document, name);
  if (!value.is_string()) return;
  if (std::find(allowed.begin(), allowed.end(), value.get<std::string>()) != allowed.end()) return;
  std::string list;
  for (const auto& a : allowed) list += (list.empty() ? "" : ", ") + a;
  problems.push_back(text(name, ": ", shown(value), " is none of ", list));
}

}  // namespace

std::vector<std::string> words_of_field(const std::string& path) {
  if (path == "status") {
    std::vector<std::string> words = statuses();
    words.emplace_back("different");
    return words;
  }
  for (const std::string of : {"certificate.", "certificate.native."}) {
    if (path == of + "verdict") return {"equal", "different", "not_run"};
    if (path == of + "level") return {"full", "scaled"};
  }
  return {};
}

const std::vector<std::string>& statuses() {
  static const std::vector<std::string> kStatuses = {
      "ok", "refused", "out_of_memory", "timeout", "diverged", "interrupted", "failed"};
  return kStatuses;
}

std::vector<std::string> document_problems(const Json& document) {
  if (!document.is_object()) return {text("expected an object, found ", shown(document))};
  std::vector<std::string> problems = Checker(document).run();
  check_one_of(document, "status", statuses(), problems);
  std::vector<std::string> worlds = world_names();
  worlds.insert(worlds.begin(), "self");
  check_one_of(document, "world", worlds, problems);
  check_one_of(document, "certificate.verdict", {"equal", "different", "not_run"}, problems);
  check_one_of(document, "certificate.level", {"full", "scaled"}, problems);
  check_one_of(document, "certificate.reference", {"oracle", "engine"}, problems);
  check_one_of(document, "certificate.native.verdict", {"equal", "different", "not_run"}, problems);
  const Json verdict = value_at(document, "certificate.verdict");
  const Json of_run = value_at(document, "certificate.native.verdict");
  if (verdict == "equal" && of_run.is_string() && of_run != "equal") {
    problems.push_back(
        text("certificate.verdict: \"equal\", and that of its part native is ", shown(of_run)));
  }
  const Json status = value_at(document, "status");
  if (status.is_string() && status != "ok" && !value_at(document, "reason").is_string()) {
    problems.push_back(text("reason: a document of status ", shown(status), " must say why"));
  }
  if (status == "ok" && value_at(document, "world") != worlds::kSimulated) {
    for (const char* name : {"loss", "certificate"}) {
      const auto it = document.find(name);
      if (it != document.end() && it->is_null()) {
        problems.push_back(text(name, ": null is for the simulated world only"));
      }
    }
  }
  return problems;
}

std::vector<std::string> unknown_fields(const Json& document) {
  std::vector<std::string> path, unknown;
  if (document.is_object()) collect_unknown(document, path, unknown);
  return unknown;
}

}  // namespace kuafu
