// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kuafu/comm/communicator.h"

namespace kuafu {

/// One kind of call, as often as it was made: what a link benchmark must repeat.
struct CallKind {
  std::string axis;
  Verb verb = Verb::kBarrier;
  int64_t bytes = 0;  ///< of the caller's buffer; all_gather: of `out`, reduce_scatter: of `in`
  auto operator<=>(const CallKind&) const = default;
};

/// What one rank did in its groups.
struct CommWatch {
  bool is_on = false;
  std::map<CallKind, int64_t> calls;
  double cpu_s = 0;   ///< CPU time of this thread inside calls and waits
  double wall_s = 0;  ///< time inside calls and waits
};

/// CPU time of the calling thread, seconds.
double thread_cpu_now();
/// Time that goes on, seconds.
double wall_now();

/// `world` whose groups write down what is called and how long it takes while the watch is on. A
/// call is waited for at once: nothing overlaps. @pre world and watch outlive it.
std::unique_ptr<Communicator> watched(Communicator& world, CommWatch& watch);

}  // namespace kuafu
