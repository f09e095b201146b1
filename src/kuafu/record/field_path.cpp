// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/record/schema.h"

namespace kuafu {
namespace {

using Parts = std::vector<std::string>;

Parts parts_of(std::string_view path) {
  Parts parts(1);
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool is_list(FieldType type) {
  return type != FieldType::kText && type != FieldType::kInteger && type != FieldType::kNumber &&
         type != FieldType::kObject;
}

bool names_element(const std::string& part) {
  const bool is_index = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return '0' <= c && c <= '9'; });
  return is_index || part == "first" || part == "last" || part == "max" || part == "sum";
}

/// Whether `path` is the field, something inside of it, or around it.
bool leads_to(const FieldDoc& field, const Parts& path) {
  const Parts own = parts_of(field.path);
  const size_t both = std::min(own.size(), path.size());
  for (size_t i = 0; i < both; ++i) {
    if (own[i] != "*" && own[i] != path[i]) return false;
  }
  if (path.size() <= own.size()) return true;
  if (is_list(field.type)) return names_element(path[own.size()]);
  return field.path == "plan" || field.path == "provenance";
}

}  // namespace

std::string path_problem(std::string_view path) {
  const Parts parts = parts_of(path);
  std::vector<std::string> known;
  for (const FieldDoc& field : document_fields()) {
    if (leads_to(field, parts)) return "";
    known.push_back(field.path);
    if (!is_list(field.type)) continue;
    for (const char* element : {".first", ".last", ".max", ".sum"}) {
      known.push_back(field.path + element);
    }
  }
  return text(in_quotes(path), " is no field of a document; did you mean ",
              in_quotes(nearest(std::string(path), known)), "? `kuafu list fields` has all");
}

}  // namespace kuafu
