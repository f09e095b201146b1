// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/names.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/base/utf8.h"

namespace kuafu {
namespace {

// Of ASCII alone, whatever the locale.
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_begin(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }
bool is_part(char c) { return is_begin(c) || c == '_' || c == '-'; }

}  // namespace

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && is_begin(name.front()) &&
         std::all_of(name.begin(), name.end(), is_part);
}

std::string problem_of_name(std::string_view name) {
  const std::string shown = as_utf8(name);
  const std::string_view start = utf8_prefix(shown, kLongestName);
  return text(in_quotes(start), start.size() < shown.size() ? "..." : "", " (", name.size(),
              name.size() == 1 ? " byte" : " bytes",
              ") is no name; allowed: a letter or digit, then letters, digits, _ and -, at most ",
              kLongestName, " in all; nearest: ", in_quotes(plain_name_near(name)));
}

std::string plain_name_near(std::string_view name) {
  std::string near;
  for (const char c : name.substr(0, kLongestName)) near += is_part(c) ? c : '_';
  if (near.empty() || !is_begin(near.front())) near = "my_" + near;
  if (near.size() > kLongestName) near.resize(kLongestName);
  return near;
}

}  // namespace kuafu
