// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kuafu::tokenizer {

/// JSON whose objects are sorted: a vocabulary of 100,000 members is one object.
using Members = nlohmann::json;

/// A value of a tokenizer file that knows its place in it. Every reader throws ConfigError with the
/// file, the path ("model.type"), what was given and what is allowed. Borrows the document.
class Component {
 public:
  Component(const std::string& file, const Members& value, std::string path)
      : file_(&file), value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const Members& value() const { return *value_; }

  /// Whether there is such a member that is not null.
  bool has(std::string_view name) const;
  /// A member. @pre this is an object
  Component at(std::string_view name) const;
  /// The elements of a list.
  std::vector<Component> elements() const;

  /// The member `type`, one of `kinds`.
  std::string kind(const std::vector<std::string>& kinds) const;
  /// One of `words`.
  std::string one_of(const std::vector<std::string>& words) const;
  /// Refuses members that are none of `names`; `type` is always one.
  void allow(std::vector<std::string> names) const;

  std::string text() const;
  char32_t character() const;
  bool boolean() const;
  int64_t count() const;  ///< a whole number from 0 on
  int32_t id() const;
  double number() const;

  // The same of members that may be left out.
  bool boolean(std::string_view name, bool otherwise) const;
  std::optional<std::string> text(std::string_view name) const;

  /// "file: path is VALUE; allowed: ..."
  [[noreturn]] void refuse(const std::string& allowed) const;
  /// "file: path: why"
  [[noreturn]] void fail(const std::string& why) const;

 private:
  void require_object() const;

  const std::string* file_;
  const Members* value_;
  std::string path_;
};

/// Parses a file; refuses what is no JSON, no UTF-8, or nested too deep.
Members parse_members(const std::string& file, std::string_view bytes);

}  // namespace kuafu::tokenizer
