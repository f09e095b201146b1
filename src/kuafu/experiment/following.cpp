// SPDX-License-Identifier: Apache-2.0
//
// Keys of a suite that follow from others: they tell no cases apart that the others do not.

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/experiment/baselines.h"
#include "kuafu/experiment/expand.h"
#include "kuafu/experiment/formula.h"
#include "kuafu/experiment/point_formulas.h"
#include "kuafu/experiment/suite_text.h"
#include "kuafu/plan/keys.h"

namespace kuafu {
namespace {

using Names = std::set<std::string>;

/// Empty of one that is none: whoever computes it says so.
Names names_in(const std::string& written) {
  if (written[0] == '$') return {written.substr(1)};
  Names names;
  try {
    Formula(written.substr(1)).visit([&](const FormulaNode& node, bool) {
      if (node.kind == FormulaNode::Kind::kName) names.insert(node.word);
    });
  } catch (const ConfigError&) {
  }
  return names;
}

bool is_same(const std::string& key, const std::string& name) {
  return whole_key(key) == whole_key(name) || last_word(key) == name;
}

/// Adds what the names follow from, until that is nothing new.
void close(std::map<std::string, Names>& follows) {
  for (bool is_new = true; is_new;) {
    is_new = false;
    for (auto& [key, names] : follows) {
      for (const auto& [other, more] : std::map(follows)) {
        const bool is_read = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          return other != key && is_same(other, name);
        });
        if (!is_read) continue;
        for (const std::string& name : more) is_new = names.insert(name).second || is_new;
      }
    }
  }
}

}  // namespace

std::map<std::string, std::set<std::string>> following_keys(const SuiteText& suite) {
  std::map<std::string, Names> follows;
  Names others;  // set to values of their own too
  const auto see = [&](const std::string& key, const std::vector<Json>& values) {
    if (values.size() == 1 && is_formula(values[0])) {
      follows[key].merge(names_in(values[0].get<std::string>()));
    } else {
      others.insert(key);
    }
  };
  for (const SweptKey& choice : suite.base_formulas) see(choice.key, choice.values);
  for (const SweepAxis& axis : suite.axes) {
    if (axis.bundles.empty()) see(axis.name, axis.values);
    for (const Bundle& row : axis.bundles) {
      for (const SweptKey& choice : row.choices) see(choice.key, choice.values);
    }
  }
  for (const std::string& key : others) follows.erase(key);
  close(follows);
  return follows;
}

}  // namespace kuafu
