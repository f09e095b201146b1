// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/memory/policy.h"

namespace kuafu::memory {

/// What a policy does for ever, once it repeats itself: `steps` steps that end as they began.
struct Played {
  int64_t steps = 1;
  OnDevice start = {};  ///< on the device when they begin, and when they end
  std::vector<Move> moves = {};
  Traffic traffic = {};
  std::vector<int64_t> live = {};  ///< bytes by moment, of chunks and what else is in use
  int64_t prefetches = 0;          ///< loads ahead of their use
  int64_t prefetch_hits = 0;       ///< of these, chunks that were used before they left again
  bool operator==(const Played&) const = default;

  double bytes_a_step() const {
    return static_cast<double>(traffic.bytes()) / static_cast<double>(steps);
  }
};

/// Plays a policy from an empty device, step by step, until what lies on the device before a step
/// lay there before another, and gives the steps between: a policy has no state of its own, so that
/// they repeat. One step for most policies and traces; there are those of more. Throws OutOfMemory
/// where a moment needs more than the budget, and ConfigError where the policy breaks a rule.
Played play(const UseTrace& trace, int64_t budget, const Policy& policy, const Knobs& knobs = {});
/// The same of the policy that a rule has for the trace.
Played play(const UseTrace& trace, int64_t budget, const PolicyRule& rule, const Knobs& knobs = {});

}  // namespace kuafu::memory
