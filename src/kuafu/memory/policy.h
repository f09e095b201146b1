// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kuafu/base/registry.h"
#include "kuafu/memory/moves.h"
#include "kuafu/memory/policy_kinds.h"

namespace kuafu::memory {

/// How far a policy looks for the next use of a chunk.
enum class Horizon {
  kStep,   ///< to the end of this step: later uses are as good as none
  kCycle,  ///< into the next step, which is the same
};

/// What a user may choose of a policy. A policy reads those that its rule names.
struct Knobs {
  int64_t prefetch = 0;     ///< moments ahead that chunks are loaded for
  double static_share = 1;  ///< of all chunks' bytes, what stays on the device at most
  double margin = 0.1;      ///< of the budget, what is left free where it can be
  Horizon horizon = Horizon::kStep;
};

/// What is known where moves are chosen: before `moment` of a step computes.
struct Known {
  const UseTrace& trace;
  const UsesByChunk& uses;
  const OnDevice& on_device;
  const Knobs& knobs;
  int64_t budget = 0;
  int64_t moment = 0;

  /// Moments until the device uses a chunk as it is now; more than T where it never does, or where
  /// the chunk changes at home before.
  int64_t distance(int64_t chunk) const {
    const NextUse next = uses.next(chunk, moment);
    return needs_device(next.access) ? next.distance : trace.num_moments() + 1;
  }
  int64_t bytes_of(int64_t chunk) const { return trace.chunks[static_cast<size_t>(chunk)].bytes; }
  const Moment& moment_ahead(int64_t distance) const {
    return trace.moments[static_cast<size_t>((moment + distance) % trace.num_moments())];
  }
};

/// What leaves the device first, then (behind what the moment itself needs) what comes ahead of its
/// use, each in order. Who asks turns it into moves: what is dirty and read again is written back.
struct Choice {
  std::vector<int64_t> evict = {}, prefetch = {};
  bool operator==(const Choice&) const = default;
};

/// A policy is a function of what is known, with no state of its own: the same is chosen again.
/// What it leaves on the device has to fit the moment together with what the moment uses.
using Policy = std::function<Choice(const Known&)>;

/// Everything is off the device between its uses.
Choice host_policy(const Known& known);
/// A fixed share stays, the rest as host. [Ren et al., ZeRO-Offload, 2101.06840, section 4]
Choice static_policy(const Known& known);
/// The longest unused leaves first; of the future it knows what it prefetches.
Choice lru_policy(const Known& known);
/// The furthest next use leaves first, over the end of the step, written or not.
/// [Belady, IBM Systems Journal 5(2), 1966, algorithm MIN]
Choice belady_policy(const Known& known);
/// The same in this step alone, where the trace ends, under a margin: ColossalAI's Gemini once it has
/// its trace. With Horizon::kCycle as PatrickStar. [Fang et al., PatrickStar, 2108.05818, section 8.3]
Choice auto_policy(const Known& known);

/// The least bytes: what `least_bytes()` keeps, searched for once. Throws Unavailable in a build
/// without CBC.
Policy make_optimal_policy(const UseTrace& trace, int64_t budget);

/// A policy that looks at the whole trace once, before its first moment.
using MakePolicy = std::function<Policy(const UseTrace& trace, int64_t budget)>;

/// What a registry has of a policy: one of `choose` and `make`.
struct PolicyRule {
  /// Keys of [memory] that it reads, of those that not all do: "prefetch", "margin", "static_share".
  std::vector<std::string> keys = {};
  Policy choose = {};
  MakePolicy make = {};
  bool needs_budget = true;  ///< see PolicyKind, as what follows
  bool warms_up = false;
  bool searches = false;
  std::string lacks = {};
};
using PolicyRules = Registry<PolicyRule>;

/// The policy of a trace. `rule` may go before it.
Policy policy_of(const PolicyRule& rule, const UseTrace& trace, int64_t budget);

/// Throws ConfigError for a policy that can be none: it has neither or both of `choose` and `make`,
/// or is named as what has no policy ("plain"); and for keys that [memory] has not.
void check_policy(const std::string& name, const PolicyRule& rule);

/// Those of builtin_policy_kinds(), in their order.
void register_policies(PolicyRules& policies);
/// The same, as a registry of their own.
const PolicyRules& builtin_policies();
/// What plans and lists know of them.
std::vector<PolicyKind> kinds_of(const PolicyRules& policies);

}  // namespace kuafu::memory
