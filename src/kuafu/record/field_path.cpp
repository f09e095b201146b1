// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/field_path.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

using Parts = std::vector<std::string>;

/// Of an index in a dotted path; none where it is no number, or one that no list reaches.
std::optional<size_t> index_of(const std::string& part) {
  size_t index = 0;
  const char* end = part.data() + part.size();
  const auto [at, error] = std::from_chars(part.data(), end, index);
  return at == end && error == std::errc() ? std::optional(index) : std::nullopt;
}

/// One element of a list; null where it has no such.
const Json* place_in(const Json& list, const std::string& which) {
  if (list.empty()) return nullptr;
  if (which == "first") return &list.front();
  if (which == "last") return &list.back();
  const auto index = index_of(which);
  return index && *index < list.size() ? &list[*index] : nullptr;
}

/// The largest number of a list of numbers, and of nulls where there is none; null where all are.
Json largest_of(const Json& list) {
  Json largest;
  for (const Json& v : list) {
    if (v.is_null()) continue;
    if (!v.is_number()) return nullptr;
    if (largest.is_null() || v > largest) largest = v;
  }
  return largest;
}

Json element_at(const Json& list, const std::string& which) {
  if (which == "max") return largest_of(list);
  if (which == "sum") {
    const bool are_numbers =
        std::all_of(list.begin(), list.end(), [](const Json& v) { return v.is_number(); });
    if (!are_numbers || list.empty()) return nullptr;
    const bool are_integers =
        std::all_of(list.begin(), list.end(), [](const Json& v) { return v.is_number_integer(); });
    int64_t whole = 0;
    double sum = 0;
    for (const Json& v : list)
      are_integers ? void(whole += v.get<int64_t>()) : void(sum += v.get<double>());
    return are_integers ? Json(whole) : Json(sum);
  }
  const Json* place = place_in(list, which);
  return place == nullptr ? Json(nullptr) : *place;
}

bool is_list(FieldType type) {
  return type != FieldType::kText && type != FieldType::kInteger && type != FieldType::kNumber &&
         type != FieldType::kObject;
}

bool names_place(const std::string& part) {
  return index_of(part) || part == "first" || part == "last";
}
bool names_element(const std::string& part) {
  return names_place(part) || part == "max" || part == "sum";
}

/// Of numbers per step the step by its place, then one or more of its numbers.
bool leads_into(FieldType type, const Parts& inside) {
  if (type != FieldType::kNumbersPerStep) return names_element(inside[0]);
  if (inside.size() > 2 || !names_place(inside[0])) return false;
  return inside.size() == 1 || names_element(inside[1]);
}

/// Whether `path` is the field, something inside of it, or around it.
bool leads_to(const FieldDoc& field, const Parts& path) {
  const Parts own = parts_of(field.path);
  const size_t both = std::min(own.size(), path.size());
  for (size_t i = 0; i < both; ++i) {
    if (own[i] != "*" && own[i] != path[i]) return false;
  }
  if (path.size() <= own.size()) return true;
  if (is_list(field.type)) {
    return leads_into(field.type,
                      {path.begin() + static_cast<std::ptrdiff_t>(own.size()), path.end()});
  }
  return field.path == "plan" || field.path == "provenance";
}

}  // namespace

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  while (true) {
    const size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    path.remove_prefix(dot + 1);
  }
}

std::string kind_at(std::string_view path) {
  const Parts parts = parts_of(path);
  for (const FieldDoc& field : document_fields()) {
    const size_t own = parts_of(field.path).size();
    if (own > parts.size() || !leads_to(field, parts)) continue;
    const size_t inside = parts.size() - own;
    switch (field.type) {
      case FieldType::kText:
        return "a text";
      case FieldType::kInteger:
      case FieldType::kNumber:
        return "a number";
      case FieldType::kTexts:
        return inside == 1 ? "a text" : "";
      case FieldType::kNumbers:
      case FieldType::kInterval:
      case FieldType::kPerRank:
        return inside == 1 ? "a number" : "";
      case FieldType::kNumbersPerStep:
      case FieldType::kBytesPerRank:
        return inside == 2 ? "a number" : "";
      case FieldType::kObject:
        return "";
    }
  }
  return "";
}

std::string path_problem(std::string_view path) {
  const Parts parts = parts_of(path);
  std::vector<std::string> known;
  for (const FieldDoc& field : document_fields()) {
    if (leads_to(field, parts)) return "";
    known.push_back(field.path);
    if (!is_list(field.type)) continue;
    const bool is_by_step = field.type == FieldType::kNumbersPerStep;
    for (const char* element : {".first", ".last", ".max", ".sum"}) {
      known.push_back(text(field.path, is_by_step ? ".last" : "", element));
    }
  }
  return text(in_quotes(path), " is no field of a document", did_you_mean(path, known),
              " `kuafu list fields` has all");
}

Json value_at(const Json& document, std::string_view path) {
  const Json* at = &document;
  const auto parts = parts_of(path);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (at->is_array()) {
      if (i + 1 == parts.size()) return element_at(*at, parts[i]);
      at = place_in(*at, parts[i]);
      if (at == nullptr) return nullptr;
      continue;
    }
    if (!at->is_object()) return nullptr;
    const auto it = at->find(parts[i]);
    if (it == at->end()) return nullptr;
    at = &*it;
  }
  return *at;
}

}  // namespace kuafu
