// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tokenizer/component.h"

#include <algorithm>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"
#include "kuafu/record/json_text.h"
#include "kuafu/tokenizer/characters.h"

namespace kuafu::tokenizer {
namespace {

std::string excerpt(const Members& value) {
  constexpr size_t kMost = 60;
  if (value.is_object()) return kuafu::text("an object of ", value.size(), " members");
  if (value.is_array()) return kuafu::text("a list of ", value.size(), " elements");
  const std::string line = value.dump(-1, ' ', false, Members::error_handler_t::replace);
  return line.size() <= kMost ? line : kuafu::text(utf8_prefix(line, kMost - 3), "...");
}

std::string member_path(const std::string& path, std::string_view name) {
  constexpr size_t kMost = 40;
  const std::string_view shown = utf8_prefix(name, kMost);
  return kuafu::text(path, path.empty() ? "" : ".", shown, shown.size() < name.size() ? "..." : "");
}

}  // namespace

void Component::fail(const std::string& why) const {
  throw ConfigError(kuafu::text("tokenizer ", *file_, ": ", path_.empty() ? "it" : path_, why));
}

void Component::refuse(const std::string& allowed) const {
  fail(kuafu::text(" is ", excerpt(*value_), "; allowed: ", allowed));
}

void Component::require_object() const {
  if (!value_->is_object()) refuse("an object");
}

bool Component::has(std::string_view name) const {
  require_object();
  const auto found = value_->find(name);
  return found != value_->end() && !found->is_null();
}

Component Component::at(std::string_view name) const {
  require_object();
  const auto found = value_->find(name);
  if (found == value_->end()) fail(kuafu::text(" has no member ", name, ", which it needs"));
  return {*file_, *found, member_path(path_, name)};
}

std::vector<Component> Component::elements() const {
  if (!value_->is_array()) refuse("a list");
  std::vector<Component> parts;
  parts.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    parts.emplace_back(*file_, (*value_)[i], path_ + "." + std::to_string(i));
  }
  return parts;
}

std::string Component::one_of(const std::vector<std::string>& words) const {
  const std::string given = text();
  if (std::find(words.begin(), words.end(), given) == words.end()) {
    refuse(kuafu::text(join(words), did_you_mean(given, words)));
  }
  return given;
}

std::string Component::kind(const std::vector<std::string>& kinds) const {
  return at("type").one_of(kinds);
}

void Component::allow(std::vector<std::string> names) const {
  require_object();
  names.emplace_back("type");
  for (const auto& [name, value] : value_->items()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    fail(kuafu::text(" has a member ", in_quotes(utf8_prefix(name, 40)), "; allowed: ", join(names),
                     did_you_mean(name, names)));
  }
}

std::string Component::text() const {
  if (!value_->is_string()) refuse("a string");
  return value_->get<std::string>();
}

char32_t Component::character() const {
  const std::string given = value_->is_string() ? value_->get<std::string>() : std::string();
  if (count_chars(given) != 1) refuse("a string of one character");
  size_t at = 0;
  return next_char(given, at);
}

bool Component::boolean() const {
  if (!value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

int64_t Component::count() const {
  const bool is_count = value_->is_number_unsigned() &&
                        value_->get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  if (!is_count) refuse("a whole number from 0 on");
  return value_->get<int64_t>();
}

int32_t Component::id() const {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 1;
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > static_cast<uint64_t>(kMost)) {
    refuse(kuafu::text("a whole number from 0 to ", kMost));
  }
  return value_->get<int32_t>();
}

double Component::number() const {
  if (!value_->is_number()) refuse("a number");
  return value_->get<double>();
}

bool Component::boolean(std::string_view name, bool otherwise) const {
  return has(name) ? at(name).boolean() : otherwise;
}

std::optional<std::string> Component::text(std::string_view name) const {
  return has(name) ? std::optional(at(name).text()) : std::nullopt;
}

Members parse_members(const std::string& file, std::string_view bytes) {
  try {
    check_json_depth(bytes);
    return Members::parse(bytes);
  } catch (const Members::parse_error& error) {
    throw ConfigError(kuafu::text("tokenizer ", file, " is no JSON from byte ", error.byte,
                                  " on; give a tokenizer.json"));
  } catch (const Members::exception&) {
    throw ConfigError(kuafu::text("tokenizer ", file, " holds a number that no double holds"));
  } catch (const ConfigError& error) {
    throw ConfigError(kuafu::text("tokenizer ", file, ": ", error.what()));
  }
}

}  // namespace kuafu::tokenizer
