// SPDX-License-Identifier: Apache-2.0
#include "kuafu/record/json_text.h"

#include <limits>
#include <set>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/base/utf8.h"

namespace kuafu {
namespace {

constexpr int kDeepest = 64;

}  // namespace

/// Brackets outside of strings; what else is wrong the parser says.
void check_json_depth(std::string_view bytes) {
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

Json parse_json(std::string_view bytes) {
  check_json_depth(bytes);
  try {
    return Json::parse(bytes);
  } catch (const Json::parse_error& e) {
    throw ConfigError(text("byte ", e.byte, ": not JSON"));
  } catch (const Json::exception& e) {  // a number too large
    throw ConfigError(words_of(e));
  }
}

std::string words_of(const Json::exception& error) {
  const std::string words = as_utf8(error.what());  // "[json.exception.type_error.302] words"
  const size_t end = words.starts_with('[') ? words.find("] ") : std::string::npos;
  return end == std::string::npos ? words : words.substr(end + 2);
}

std::string repeated_key(std::string_view bytes) {
  struct Open {
    std::set<std::string> keys = {};
    std::string last = {};
  };
  std::vector<Open> objects;
  std::string found;
  const auto note = [&](const std::string& key) {
    const bool is_new = objects.back().keys.insert(key).second;
    objects.back().last = key;
    if (is_new || !found.empty()) return;
    for (const Open& o : objects) found += text(found.empty() ? "" : ".", o.last);
  };
  const auto look = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) objects.emplace_back();
    if (event == Json::parse_event_t::key) note(value.get<std::string>());
    if (event == Json::parse_event_t::object_end) objects.pop_back();
    return true;
  };
  const Json all = Json::parse(bytes, look);
  KUAFU_CHECK(objects.empty(), "JSON whose objects do not end");
  return found;
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
