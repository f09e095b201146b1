// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/config.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

#include <toml++/toml.h>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"

namespace kuafu {
namespace {

using Kind = ConfigValue::Kind;

/// A document, and how errors name it.
struct Source {
  std::string_view document, origin;

  /// A number that is written as another than 0, and is none of those that a double holds.
  void refuse_underflow(const toml::node& node, double value, std::string_view key) const {
    if (value != 0) return;
    const toml::source_position at = node.source().begin;
    size_t from = 0;
    for (auto line = at.line; line > 1; --line) from = document.find('\n', from) + 1;
    for (auto column = at.column; column > 1; ++from) {  // columns are characters
      if (from + 1 >= document.size() || !is_in_character(document[from + 1])) --column;
    }
    const std::string_view rest = document.substr(std::min(from, document.size()));
    const std::string_view written = rest.substr(0, rest.find_first_not_of("+-._0123456789eE"));
    const bool is_zero =
        written.substr(0, written.find_first_of("eE")).find_first_of("123456789") ==
        std::string_view::npos;
    KUAFU_REQUIRE(is_zero, origin, ":", at.line, ": ", key, " = ", written,
                  " is too small for a number of 64 bits; nearest: ",
                  toml_number(std::numeric_limits<double>::min()));
  }

 private:
  static bool is_in_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }
};

ConfigValue convert(const toml::node& node, const Source& source, std::string_view key);

/// The parser keeps tables sorted by name; the order written comes back from the positions.
void convert_table(const toml::table& table, const Source& source, ConfigValue& out) {
  std::vector<std::pair<toml::source_position, std::string>> order;
  for (const auto& [key, node] : table) {
    order.emplace_back(key.source().begin, std::string(key.str()));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [position, name] : order) {
    ConfigValue value = convert(*table.get(name), source, name);
    value.line = static_cast<int>(position.line);
    out.entries.emplace_back(name, std::move(value));
  }
}

ConfigValue convert(const toml::node& node, const Source& source, std::string_view key) {
  ConfigValue out;
  out.line = static_cast<int>(node.source().begin.line);
  if (const auto* table = node.as_table()) {
    out.kind = Kind::kTable;
    convert_table(*table, source, out);
  } else if (const auto* list = node.as_array()) {
    out.kind = Kind::kList;
    for (const toml::node& item : *list) out.items.push_back(convert(item, source, key));
  } else if (const auto* integer = node.as_integer()) {
    out.kind = Kind::kInteger;
    out.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    out.kind = Kind::kNumber;
    out.number = number->get();
    source.refuse_underflow(node, out.number, key);
  } else if (const auto* boolean = node.as_boolean()) {
    out.kind = Kind::kBoolean;
    out.boolean = boolean->get();
  } else if (const auto* string = node.as_string()) {
    out.kind = Kind::kString;
    out.string = string->get();
  } else {
    out.kind = Kind::kTime;
    std::ostringstream written;
    written << toml::node_view<const toml::node>(node);
    out.string = written.str();
  }
  return out;
}

constexpr int kMostParts = 16;  ///< of a dotted key; no key of ours has more than five

/// Where the string that opens at `at` is over: behind its closing quotes.
size_t end_of_string(std::string_view document, size_t at) {
  const char quote = document[at];
  const std::string three(3, quote);
  const bool is_long = document.substr(at, 3) == three;
  for (at += is_long ? 3 : 1; at < document.size(); ++at) {
    if (document[at] == '\\' && quote == '"') {
      ++at;
    } else if (is_long ? document.substr(at, 3) == three
                       : document[at] == quote || document[at] == '\n') {
      return at + (is_long ? 3 : 1);
    }
  }
  return document.size();
}

/// The parser limits nested values, but a dotted key is as deep as it has parts, and every part
/// takes a stack frame wherever the tables are walked or destroyed. The line of a key with more
/// than kMostParts; 0 where there is none.
int line_of_deep_key(std::string_view document) {
  int line = 1, dots = 0;
  for (size_t at = 0; at < document.size();) {
    const char c = document[at];
    if (c == '"' || c == '\'') {
      const size_t end = end_of_string(document, at);
      line += static_cast<int>(std::count(document.begin() + static_cast<ptrdiff_t>(at),
                                          document.begin() + static_cast<ptrdiff_t>(end), '\n'));
      at = end;
      continue;
    }
    if (c == '#') {
      at = std::min(document.find('\n', at), document.size());
      continue;
    }
    if (c == '.' && ++dots >= kMostParts) return line;
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots = 0;
    line += c == '\n' ? 1 : 0;
    ++at;
  }
  return 0;
}

}  // namespace

const ConfigValue* ConfigValue::find(std::string_view name) const {
  for (const auto& [key, value] : entries) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string_view describe(Kind kind) {
  switch (kind) {
    case Kind::kInteger:
      return "an integer";
    case Kind::kNumber:
      return "a floating-point number";
    case Kind::kBoolean:
      return "a boolean";
    case Kind::kString:
      return "a string";
    case Kind::kTime:
      return "a date or time";
    case Kind::kList:
      return "a list";
    case Kind::kTable:
      return "a table";
  }
  return "a value";
}

std::string to_string(const ConfigValue& value) {
  std::vector<std::string> parts;
  switch (value.kind) {
    case Kind::kInteger:
      return text(value.integer);
    case Kind::kNumber:
      return toml_number(value.number);
    case Kind::kBoolean:
      return value.boolean ? "true" : "false";
    case Kind::kString:
      return in_quotes(value.string);
    case Kind::kTime:
      return value.string;
    case Kind::kList:
      for (const ConfigValue& item : value.items) parts.push_back(to_string(item));
      return "[" + join(parts) + "]";
    case Kind::kTable:
      for (const auto& [name, entry] : value.entries) {
        parts.push_back(name + " = " + to_string(entry));
      }
      return parts.empty() ? "{}" : "{ " + join(parts) + " }";
  }
  return {};
}

ConfigValue parse_toml(std::string_view document, std::string_view origin) {
  const int deep = line_of_deep_key(document);
  KUAFU_REQUIRE(deep == 0, origin, ":", deep, ": a dotted key has more than ", kMostParts,
                " parts");
  try {
    return convert(toml::parse(document, origin), {document, origin}, "");
  } catch (const toml::parse_error& error) {
    throw ConfigError(text(origin, ":", error.source().begin.line,
                           ": not valid TOML: ", as_utf8(error.description())));
  }
}

std::optional<ConfigValue> parse_toml_value(std::string_view value) {
  if (line_of_deep_key(value) != 0) return {};
  try {
    const std::string whole = "value = " + std::string(value);
    const ConfigValue document = convert(toml::parse(whole), {whole, "value"}, "");
    // A line break in the text would smuggle in a second key.
    if (document.entries.size() != 1 || value.find('\n') != std::string_view::npos) return {};
    return document.entries.front().second;
  } catch (const toml::parse_error&) {
    return {};
  } catch (const ConfigError&) {  // a number that is none
    return {};
  }
}

std::string toml_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char digits[32];
  const auto result = std::to_chars(digits, digits + sizeof(digits), number);
  std::string out(digits, result.ptr);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string read_file(const std::string& path, std::string_view what) {
  std::error_code ignored;
  KUAFU_REQUIRE(!std::filesystem::is_directory(path, ignored), "the ", what, " ", in_quotes(path),
                " is a folder; give a file");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  KUAFU_REQUIRE(in.is_open(), "cannot read the ", what, " ", in_quotes(path), ": ",
                std::strerror(errno));
  constexpr size_t kPart = size_t{1} << 20, kMost = 64 * kPart;
  const bool has_end = std::filesystem::is_regular_file(path, ignored);
  std::string bytes;
  while (in) {
    const size_t begin = bytes.size();
    KUAFU_REQUIRE(has_end || begin <= kMost, "the ", what, " ", in_quotes(path),
                  " is a device or a pipe that does not end; give a file");
    bytes.resize(begin + kPart);
    in.read(bytes.data() + begin, kPart);
    bytes.resize(begin + static_cast<size_t>(in.gcount()));
  }
  KUAFU_REQUIRE(!in.bad(), "cannot read the ", what, " ", in_quotes(path), ": ",
                std::strerror(errno));
  return bytes;
}

}  // namespace kuafu
