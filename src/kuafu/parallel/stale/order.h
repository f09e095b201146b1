// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Orders in which parameter servers apply what workers push.
namespace kuafu {

/// One push that a parameter server has made an update of.
struct AppliedPush {
  int64_t worker = 0;
  int64_t step = 0;  ///< of the worker, from 0
  /// Of the parameters its gradient was computed with: updates they had seen, those before a
  /// checkpoint too.
  int64_t version = 0;
  bool operator==(const AppliedPush&) const = default;
};

/// What a server has applied, in its order: entry i made version i + 1 of its part, counted from the
/// one that it began with.
using PushOrder = std::vector<AppliedPush>;

/// What bounds the orders in which servers may apply pushes.
struct PushRules {
  int64_t workers = 1, steps = 0;  ///< steps of each worker
  int64_t staleness = 0;           ///< how far one may be ahead of the slowest
  int64_t begun = 0;               ///< steps of each before, by a checkpoint
  std::vector<int64_t> met = {};   ///< steps after which all settled: each read the newest version
};

/// Why no servers can have applied pushes so: a step that is none's next, or too far ahead, or
/// computed with a version that its worker had not read. Empty: they can.
std::string why_unlawful(const std::vector<PushOrder>& orders, const PushRules& rules);

/// Throws ConfigError for a script, workers in the order of their pushes, that some worker would
/// have to be further ahead of the slowest for than the bound.
void check_script(const std::vector<int>& script, int64_t workers, int64_t staleness);

}  // namespace kuafu
