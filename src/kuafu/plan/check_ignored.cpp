// SPDX-License-Identifier: Apache-2.0
//
// Which keys the chosen kinds never read.

#include <algorithm>

#include "kuafu/base/suggest.h"
#include "kuafu/plan/check.h"
#include "kuafu/plan/choices.h"
#include "kuafu/plan/keys.h"

namespace kuafu::plan {
namespace {

std::vector<std::string> that_read(const std::string& key,
                                   const std::vector<OptimizerKind>& kinds) {
  std::vector<std::string> names;
  for (const OptimizerKind& kind : kinds) {
    const bool reads = std::find(kind.keys.begin(), kind.keys.end(), key) != kind.keys.end();
    if (reads) names.push_back(kind.name);
  }
  return names;
}

/// Values of its governor under which a key is read; of kinds and policies also those of plug-ins.
std::vector<std::string> needs_of(const Key& key, const Choices& choices) {
  const std::string name = key.name.substr(key.section().size() + 1);
  if (key.governor == "optimizer.kind") return that_read(name, choices.optimizers);
  if (key.governor == kPolicyKey) return memory::policies_that_read(name, choices.policies);
  return key.needs;
}

}  // namespace

/// A key that was given, or that differs from its default, and that the chosen kind never reads. An
/// empty name names nothing: so a case of a suite leaves the base's out.
void check_ignored(const Plan& plan, const Choices& choices, const Origins& origins) {
  const Plan defaults;
  for (const Key& key : keys()) {
    const std::string value = print(key, plan);
    const bool is_default = value == print(key, defaults);
    if (is_default && (!origins.has(key.name) || value == R"("")")) continue;
    // A governor may have one itself, which then is why.
    for (const Key* at = &key; !at->governor.empty(); at = find_key(at->governor)) {
      const std::string governing = print(*find_key(at->governor), plan);
      const std::vector<std::string> needs = in_quotes(needs_of(*at, choices));
      KUAFU_REQUIRE(std::find(needs.begin(), needs.end(), governing) != needs.end(),
                    origins.of({key.name}), key.name, " = ", print(key, plan),
                    " has no effect with ", at->governor, " = ", governing,
                    "; leave it out or set ", at->governor, " = ", join_or(needs));
    }
  }
}

}  // namespace kuafu::plan
