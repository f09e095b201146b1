// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace kuafu::memory {

/// A policy, as plans and lists name it.
struct PolicyKind {
  std::string name, summary;
  /// Keys of [memory] that it reads besides those that all read: "margin".
  std::vector<std::string> keys = {};
  /// It keeps what fits: without a budget nothing would leave.
  bool needs_budget = true;
  /// Its first training step is played by "host" and measured; else the uses of a step are foretold.
  bool warms_up = false;
  /// Choosing may take as long as a search does: a minute for a trace.
  bool searches = false;
  /// What it needs and this build has not: "CBC (not found)"; empty: it is all there.
  std::string lacks = {};
};
/// "host", "static", "lru", "belady", "auto", "optimal".
const std::vector<PolicyKind>& builtin_policy_kinds();
/// The names of those that read a key; of all where no policy of this build names it, as all read it.
std::vector<std::string> policies_that_read(const std::string& key,
                                            const std::vector<PolicyKind>& kinds);

/// What a search for the least bytes needs and this build has not; empty where it has CBC.
std::string lacks_of_search();

}  // namespace kuafu::memory
