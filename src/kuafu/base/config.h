// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kuafu {

/// One value of a TOML document and the line it was written on.
struct ConfigValue {
  enum class Kind : uint8_t { kInteger, kNumber, kBoolean, kString, kTime, kList, kTable };

  Kind kind = Kind::kTable;
  int line = 0;  ///< from 1
  int64_t integer = 0;
  double number = 0;
  bool boolean = false;
  std::string string;              ///< a string's characters, or a date or time as written
  std::vector<ConfigValue> items;  ///< of a list
  /// Of a table, in the order written.
  std::vector<std::pair<std::string, ConfigValue>> entries;

  /// The entry of a table; null where it lacks one.
  const ConfigValue* find(std::string_view name) const;
};

/// "an integer", "a floating-point number", ...
std::string_view describe(ConfigValue::Kind kind);

/// The value as TOML on one line, for messages.
std::string to_string(const ConfigValue& value);

/// Parses a document. `origin` names the file in messages.
/// Throws ConfigError "origin:line: ..." where it is no TOML, duplicate keys included.
ConfigValue parse_toml(std::string_view document, std::string_view origin);

/// Parses one value, `4`, `"text"`, `{ size = 2 }`; none where the text is no TOML value.
std::optional<ConfigValue> parse_toml_value(std::string_view value);

/// A floating-point number as TOML writes it: the fewest digits that read back as the same number.
std::string toml_number(double number);

/// The bytes of a file. Throws ConfigError with the system's reason; `what` names it: "plan".
std::string read_file(const std::string& path, std::string_view what);

}  // namespace kuafu
