// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/policy_kinds.h"

#include <algorithm>

#include "kuafu/base/build_info.h"
#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

bool reads(const PolicyKind& kind, const std::string& key) {
  return std::find(kind.keys.begin(), kind.keys.end(), key) != kind.keys.end();
}

}  // namespace

const std::vector<PolicyKind>& builtin_policy_kinds() {
  static const std::vector<PolicyKind> kinds = {
#define KUAFU_POLICY(name_, function, ...) {.name = name_, __VA_ARGS__},
#include "kuafu/memory/policies.def"
  };
  return kinds;
}

std::vector<std::string> policies_that_read(const std::string& key,
                                            const std::vector<PolicyKind>& kinds) {
  const std::vector<PolicyKind>& own = builtin_policy_kinds();
  const bool is_of_some =
      std::any_of(own.begin(), own.end(), [&](const PolicyKind& kind) { return reads(kind, key); });
  std::vector<std::string> names;
  for (const PolicyKind& kind : kinds) {
    if (!is_of_some || reads(kind, key)) names.push_back(kind.name);
  }
  return names;
}

std::string lacks_of_search() {
  const BuildFeature& cbc = build_info::kCbc;
  return cbc.found ? "" : text(cbc.name, " (", cbc.detail, ")");
}

}  // namespace kuafu::memory
