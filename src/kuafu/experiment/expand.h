// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kuafu/experiment/suite_text.h"

namespace kuafu {

/// One point of a sweep before its plan is made.
struct Point {
  std::string name;
  Settings settings;  ///< what distinguishes it: one entry an axis
  Settings given;     ///< every key it sets: of plans, and ranks, world, certify, timeout_s
  int line = 0;       ///< where the suite asks for it
  std::map<std::string, int> lines;  ///< where the suite has a key of `given`
  std::vector<std::string> labels;   ///< of each setting, as in the name; empty where not named
  bool is_of_sweep = false;          ///< from the axes, not a `[[case]]`
  bool is_comparison = false;        ///< a baseline's: the base's own parallel keys do not count
};

/// Cartesian product of all axes, without the skipped points, then the extra cases. A bundle's key
/// replaces the grid's axis of that key; a list in a bundle is an axis of its own; values may follow
/// from others (point_formulas.h), for which keys of `overrides` have the values given there.
/// Throws ConfigError with the line: a key set twice, two cases of one name, an unknown name in a
/// formula or in `[[skip]]`.
std::vector<Point> expand(const SuiteText& suite, const Overrides& overrides = {});

/// The value of a key in `settings`, by its whole name or its last word; null where it has none.
const Json* find_setting(const Settings& settings, const std::string& key);

/// The last word of a dotted key.
std::string last_word(const std::string& key);

/// The one of `keys` that `name` is, or whose last word it is; `name` where it is none. So a case that
/// leaves a varied key at its default is asked for the same key as those that set it.
std::string named_in_full(const std::string& name, const std::vector<std::string>& keys);

/// Why `name` may not stand for one of `keys`: several end in it, and it is none of them; else empty.
std::string why_ambiguous(const std::string& name, const std::vector<std::string>& keys);

/// A single value as people write it: texts without quotes.
std::string plain_text(const Json& value);

}  // namespace kuafu
