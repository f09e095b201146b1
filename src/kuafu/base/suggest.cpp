// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/suggest.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <limits>

namespace kuafu {
namespace {

std::string lower_case(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// "poly" of "polynomial". Both in lower case.
bool is_beginning(const std::string& given, const std::string& word) {
  return given.size() >= 3 && word.starts_with(given);
}

}  // namespace

int64_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: before[j] and row[j] end at a[i-2] and a[i-1], next[j] at a[i].
  const size_t n = b.size();
  std::vector<int64_t> before(n + 1), row(n + 1), next(n + 1);
  for (size_t j = 0; j <= n; ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= n; ++j) {
      const int64_t replaced = row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, replaced});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[n];
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string folded = lower_case(name);
  std::string best;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const std::string& candidate : candidates) {
    const std::string other = lower_case(candidate);
    const int64_t distance = edit_distance(folded, other);
    const int64_t edits =
        2 * (is_beginning(folded, other) ? std::min<int64_t>(distance, 1) : distance) +
        (candidate == name ? 0 : 1);
    if (edits < fewest) {
      fewest = edits;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view given, const std::vector<std::string>& known) {
  const std::string name = nearest(given, known);
  const auto letters = static_cast<int64_t>(std::min(given.size(), name.size()));
  const std::string folded = lower_case(given), other = lower_case(name);
  if (!is_beginning(folded, other) && edit_distance(folded, other) > letters / 2) return ".";
  return "; did you mean " + (name.starts_with("-") ? name : in_quotes(name)) + "?";
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += separator;
    out += words[i];
  }
  return out;
}

std::string join_or(const std::vector<std::string>& words) {
  if (words.size() < 2) return join(words);
  const std::vector<std::string> head(words.begin(), words.end() - 1);
  return join(head) + " or " + words.back();
}

std::string in_quotes(std::string_view word) {
  std::string out = "\"";
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04X", byte);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::vector<std::string> in_quotes(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words) out.push_back(in_quotes(word));
  return out;
}

}  // namespace kuafu
