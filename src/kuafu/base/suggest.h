// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kuafu {

/// Smallest number of insertions, deletions, replacements and swaps of neighbours that turn `a`
/// into `b` (optimal string alignment distance).
int64_t edit_distance(std::string_view a, std::string_view b);

/// The candidate fewest edits away, letter case counting only between equals; the first of several;
/// empty where there are no candidates.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

/// `; did you mean "x"?` where one of `known` is near: at most half of the shorter one's letters are
/// others; "." where none is, so that nobody is sent after a name that has nothing to do with his.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& known);

/// "a, b, c"
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

/// "a", "a or b", "a, b or c"
std::string join_or(const std::vector<std::string>& words);

/// `"word"`, with TOML's escapes.
std::string in_quotes(std::string_view word);
std::vector<std::string> in_quotes(const std::vector<std::string>& words);

}  // namespace kuafu
