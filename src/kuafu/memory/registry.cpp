// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/base/suggest.h"
#include "kuafu/memory/policy.h"

namespace kuafu::memory {
namespace {

constexpr const char* kNoPolicy = "plain";

PolicyRule rule_of(Choice (*choose)(const Known&)) { return {.choose = choose}; }
PolicyRule rule_of(Policy (*make)(const UseTrace&, int64_t)) { return {.make = make}; }

/// Keys that a policy of this build names.
std::vector<std::string> known_keys() {
  std::vector<std::string> keys;
  for (const PolicyKind& kind : builtin_policy_kinds()) {
    for (const std::string& key : kind.keys) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  return keys;
}

}  // namespace

Policy policy_of(const PolicyRule& rule, const UseTrace& trace, int64_t budget) {
  return rule.make ? rule.make(trace, budget) : rule.choose;
}

void check_policy(const std::string& name, const PolicyRule& rule) {
  const std::string who = text("memory policy ", in_quotes(name));
  KUAFU_REQUIRE(name != kNoPolicy, who,
                " has the name of plans without one; nearest: ", in_quotes(text("my_", kNoPolicy)));
  KUAFU_REQUIRE(static_cast<bool>(rule.choose) != static_cast<bool>(rule.make), who, " has ",
                rule.choose ? "both" : "neither", " of choose and make; allowed: one of them");
  const std::vector<std::string> known = known_keys();
  for (const std::string& key : rule.keys) {
    KUAFU_REQUIRE(std::find(known.begin(), known.end(), key) != known.end(), who, " reads a key ",
                  in_quotes(key), "; allowed: ", join(in_quotes(known)),
                  "; nearest: ", in_quotes(nearest(key, known)));
  }
}

void register_policies(PolicyRules& policies) {
  std::vector<PolicyRule> rules = {
#define KUAFU_POLICY(name, function, ...) rule_of(function),
#include "kuafu/memory/policies.def"
  };
  const std::vector<PolicyKind>& kinds = builtin_policy_kinds();
  for (size_t i = 0; i < kinds.size(); ++i) {
    rules[i].keys = kinds[i].keys;
    rules[i].needs_budget = kinds[i].needs_budget;
    rules[i].warms_up = kinds[i].warms_up;
    rules[i].searches = kinds[i].searches;
    rules[i].lacks = kinds[i].lacks;
    policies.add(kinds[i].name, kinds[i].summary, rules[i]);
  }
}

const PolicyRules& builtin_policies() {
  static const PolicyRules kAll = [] {
    PolicyRules policies("memory policy");
    register_policies(policies);
    return policies;
  }();
  return kAll;
}

std::vector<PolicyKind> kinds_of(const PolicyRules& policies) {
  std::vector<PolicyKind> kinds;
  for (const auto& [name, summary, rule] : policies.entries()) {
    kinds.push_back({.name = name,
                     .summary = summary,
                     .keys = rule.keys,
                     .needs_budget = rule.needs_budget,
                     .warms_up = rule.warms_up,
                     .searches = rule.searches,
                     .lacks = rule.lacks});
  }
  return kinds;
}

}  // namespace kuafu::memory
