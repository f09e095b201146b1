// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/json_text.h"

#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/base/utf8.h"

namespace kuafu {
namespace {

constexpr int kDeepest = 64;

/// Brackets outside of strings; what else is wrong the parser says.
void check_depth(std::string_view bytes) {
  int depth = 0;
  bool is_string = false;
  for (size_t at = 0; at < bytes.size(); ++at) {
    const char c = bytes[at];
    if (is_string) {
      if (c == '\\') ++at;
      if (c == '"') is_string = false;
    } else if (c == '"') {
      is_string = true;
    } else if (c == '[' || c == '{') {
      KUAFU_REQUIRE(++depth <= kDeepest, "byte ", at, ": JSON nested deeper than ", kDeepest);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

Json parse_json(std::string_view bytes) {
  check_depth(bytes);
  try {
    return Json::parse(bytes);
  } catch (const Json::parse_error& e) {
    throw ConfigError(text("byte ", e.byte, ": not JSON"));
  } catch (const Json::exception& e) {  // a number too large
    throw ConfigError(as_utf8(e.what()));
  }
}

std::string json_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_document(const Json& value) {
  return value.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<int64_t> whole_number(const Json& value) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool is_whole =
      value.is_number_unsigned() ? value.get<uint64_t>() <= kMost : value.is_number_integer();
  return is_whole ? std::optional(value.get<int64_t>()) : std::nullopt;
}

std::string json_excerpt(const Json& value, size_t most) {
  const std::string line = json_line(value);
  return line.size() <= most ? line : text(utf8_prefix(line, most - 3), "...");
}

}  // namespace kuafu
