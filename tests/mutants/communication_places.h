// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/mutants/mutant.h"

// Where ranks talk: axes of plans, and the verbs that are called on them.
namespace kuafu::tests {

using Verbs = std::vector<Verb>;

/// Calls on an axis of a plan.
struct Place {
  std::string name, axis;
  Verbs verbs;
  Overrides overrides;
  int depth = 0;                     ///< of the groups, see CommFault
  int (*place)(int rank) = nullptr;  ///< of a world rank in its group; null: a draw less
};
const std::vector<Place>& places();

/// Two replicas of two stages.
Overrides pipeline(const char* schedule, const char* zero);

/// Calls of the first step.
inline constexpr const char* kWhen[] = {"first", "middle", "last"};

/// Sets a fault in the call `kWhen[when]`: which one it is, and which rank, is known once the plan
/// is.
std::function<void(Mutant&, const Plan&)> aimed(const Place& place, CommFault fault, size_t when);

}  // namespace kuafu::tests
