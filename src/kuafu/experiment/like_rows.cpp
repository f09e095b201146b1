// SPDX-License-Identifier: Apache-2.0
//
// at(key = value, ...): the row like another one but for some settings.

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/base/suggest.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/rows.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

using Picks = FormulaScope::Picks;

constexpr int64_t kExtraKey = 1000;  ///< outweighs every key that rows of an axis set

const Json* setting_of(const Row& row, const std::string& key) {
  for (const auto& [name, value] : row.settings) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string words_of(const Picks& picks) {
  std::vector<std::string> words;
  for (const auto& [key, value] : picks) {
    words.push_back(text(key, " = ", plain_text(value.json())));
  }
  return join(words);
}

/// Whether `key`, perhaps a last word, is one of `keys`.
bool is_among(const std::string& key, const std::set<std::string>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& other) {
    return whole_key(other) == whole_key(key) || other == last_word(key) || last_word(other) == key;
  });
}

bool is_among_any(const std::set<std::string>& some, const std::set<std::string>& keys) {
  return std::any_of(some.begin(), some.end(),
                     [&](const std::string& key) { return is_among(key, keys); });
}

}  // namespace

/// Another row of `[[strategy]]` brings its own ranks: what rows of an asked axis set is free, and what
/// follows from an asked key.
std::set<std::string> Rows::free_keys(const Picks& picks) const {
  std::set<std::string> free = {"baseline"};
  for (const auto& [key, value] : picks) {
    const auto axis = derived_.row_keys.find(key);
    if (axis != derived_.row_keys.end()) free.insert(axis->second.begin(), axis->second.end());
  }
  for (const auto& [follower, names] : derived_.follows) {
    const bool follows = is_among_any(free, names) ||
                         std::any_of(picks.begin(), picks.end(),
                                     [&](const auto& pick) { return is_among(pick.first, names); });
    if (follows) free.insert(follower);
  }
  return free;
}

std::optional<int64_t> Rows::distance(size_t a, size_t b, const std::set<std::string>& asked,
                                      const std::set<std::string>& free) const {
  const bool is_beside_baseline = (setting_of(rows_[a], "baseline") == nullptr) !=
                                  (setting_of(rows_[b], "baseline") == nullptr);
  int64_t sum = 0;
  for (const auto& [from, to] : {std::pair{a, b}, {b, a}}) {
    for (const auto& [key, value] : rows_[from].settings) {
      if (is_among(key, asked)) continue;
      const Json* other = setting_of(rows_[to], key);
      const bool is_free =
          is_among(key, free) || (is_beside_baseline && is_placement_key(whole_key(key)));
      if (is_free) {
        sum += other == nullptr || *other != value ? 1 : 0;
      } else if (other != nullptr) {
        if (*other != value) return std::nullopt;
      } else {
        const Value planned =
            plan::find_key(whole_key(key)) == nullptr ? Value::absent("") : plan_value(to, key);
        const bool is_other =
            !planned.is_absent() && plain_text(planned.json()) != plain_text(value);
        if (is_other) return std::nullopt;
        sum += kExtraKey;
      }
    }
  }
  return sum;
}

std::optional<size_t> Rows::like(size_t row, const Picks& picks, std::string& why_not) const {
  const std::set<std::string> free = free_keys(picks);
  std::set<std::string> asked;
  for (const auto& [key, value] : picks) asked.insert(key);
  std::vector<size_t> nearest;
  int64_t least = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const bool is_asked = std::all_of(picks.begin(), picks.end(), [&](const auto& pick) {
      return has(i, pick.first, pick.second).is_true();
    });
    if (!is_asked) continue;
    const auto apart = distance(row, i, asked, free);
    if (!apart || (!nearest.empty() && *apart > least)) continue;
    if (nearest.empty() || *apart < least) nearest.clear();
    least = *apart;
    nearest.push_back(i);
  }
  if (nearest.size() == 1) return nearest.front();
  const std::string who = text("like ", in_quotes(rows_[row].name), " with ", words_of(picks));
  why_not = nearest.empty()
                ? "there is no case " + who
                : text(nearest.size(), " cases are ", who, ", ", in_quotes(rows_[nearest[0]].name),
                       " and ", in_quotes(rows_[nearest[1]].name), " among them: say more in at()");
  return std::nullopt;
}

}  // namespace kuafu
