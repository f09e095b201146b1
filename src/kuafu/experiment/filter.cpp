// SPDX-License-Identifier: Apache-2.0
#include "kuafu/experiment/filter.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

/// `*` stands for any letters, `?` for one.
bool is_like(std::string_view word, std::string_view pattern) {
  constexpr size_t kNone = std::string_view::npos;
  size_t w = 0, p = 0, star = kNone, behind = 0;  // `star` took the letters up to `behind`
  while (w < word.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      behind = w;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == word[w])) {
      ++p, ++w;
    } else if (star != kNone) {
      p = star + 1;
      w = ++behind;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const size_t first = std::min(list.find_first_not_of(' ', begin), end);
    parts.push_back(list.substr(first, end - first));
    begin = end + 1;
  }
  return parts;
}

std::optional<double> number_in(const std::string& word) {
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number)
                                                                  : std::nullopt;
}

/// As texts, or as numbers however they are written: 1e-3 is 0.001.
bool is_meant(const std::string& value, const std::string& pattern) {
  if (is_like(value, pattern)) return true;
  const std::optional<double> number = number_in(pattern);
  return number && number == number_in(value);
}

bool has(const std::vector<std::string>& values, const std::string& pattern) {
  return std::any_of(values.begin(), values.end(),
                     [&](const std::string& value) { return is_meant(value, pattern); });
}

/// The patterns of one filter: the whole of it where some value is like that, else its parts.
std::vector<std::string> patterns_of(const std::string& wanted,
                                     const std::vector<std::string>& values) {
  return has(values, wanted) ? std::vector<std::string>{wanted} : split(wanted);
}

/// Plan keys that a word may stand for: rows of axes set keys that no case is called by.
std::string whole_keys(const std::string& word) {
  std::vector<std::string> keys;
  for (const plan::Key& key : plan::keys()) {
    if (key.name != word && last_word(key.name) == word) keys.push_back(key.name);
  }
  return keys.empty() ? "" : text(" In full: ", join_or(keys), ".");
}

}  // namespace

std::vector<size_t> picked(const Pickable& from, const Overrides& filters,
                           std::string_view option) {
  std::vector<size_t> kept(from.size);
  std::iota(kept.begin(), kept.end(), size_t{0});
  for (const auto& [given, wanted] : filters) {
    const std::string ambiguous = why_ambiguous(given, from.keys);
    KUAFU_REQUIRE(ambiguous.empty(), option, " ", given, "=", wanted, ": ", ambiguous);
    const std::string key = named_in_full(given, from.keys);
    std::vector<std::string> values;  // of all, so that a list may name what another filter drops
    for (size_t i = 0; i < from.size; ++i) {
      const auto value = from.value(i, key);
      if (value && std::find(values.begin(), values.end(), *value) == values.end()) {
        values.push_back(*value);
      }
    }
    KUAFU_REQUIRE(!values.empty(), option, " ", given, "=", wanted, ": no case has the key ",
                  in_quotes(given), did_you_mean(given, from.keys), whole_keys(given),
                  " The cases differ in ", join(from.keys));
    const std::vector<std::string> patterns = patterns_of(wanted, values);
    for (const std::string& pattern : patterns) {
      KUAFU_REQUIRE(has(values, pattern), option, " ", given, "=", wanted, ": no case has ", given,
                    " = ", in_quotes(pattern), did_you_mean(pattern, values), " ", given, " is ",
                    join_or(values));
    }
    std::erase_if(kept, [&](size_t i) {
      const auto value = from.value(i, key);
      return !value || std::none_of(patterns.begin(), patterns.end(),
                                    [&](const auto& pattern) { return is_meant(*value, pattern); });
    });
    KUAFU_REQUIRE(!kept.empty(), option, " ", given, "=", wanted,
                  ": no case is left: none has this beside what the filters before it ask for");
  }
  return kept;
}

std::vector<std::string> setting_names(const std::vector<Case>& cases) {
  std::vector<std::string> names;
  for (const Case& c : cases) {
    for (const auto& [name, v] : c.settings) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::vector<Case> filtered(const std::vector<Case>& cases, const Overrides& filters) {
  const Pickable from{cases.size(),
                      [&](size_t i, const std::string& key) { return case_value(cases[i], key); },
                      setting_names(cases)};
  std::vector<Case> kept;
  for (const size_t i : picked(from, filters, "--filter")) kept.push_back(cases[i]);
  return kept;
}

}  // namespace kuafu
