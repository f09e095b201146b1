// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kuafu/comm/communicator.h"

namespace kuafu {

/// Why a run ends before its last step. Where ranks were told different things the largest holds.
enum class Stop : int64_t { kNone = 0, kStopAfter = 1, kTimeout = 2, kSignal = 3 };

/// What a process is asked from outside while it trains, by a signal or a clock: for all its ranks.
/// Signal handlers may call it.
class Requests {
 public:
  void stop(Stop cause) { stop_.store(static_cast<int64_t>(cause), std::memory_order_relaxed); }
  void save() { saves_.fetch_add(1, std::memory_order_relaxed); }
  Stop stopped() const { return static_cast<Stop>(stop_.load(std::memory_order_relaxed)); }
  int64_t saves() const { return saves_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> stop_{0}, saves_{0};
};

/// Ranks stop and save after the same step: processes get a signal one after the other, and threads
/// see it at steps of their own.
class Agreement {
 public:
  Agreement(Communicator& world, const Requests& requests) : world_(world), requests_(requests) {}

  struct Asked {
    Stop stop = Stop::kNone;
    bool is_save = false;     ///< since the call before
    bool is_rolling = false;  ///< by a rank's own clock
  };
  /// Whether this rank was asked for what it has not told the others.
  bool is_asked() const {
    return requests_.stopped() != Stop::kNone || requests_.saves() > saves_seen_;
  }
  /// What any rank was asked, or wants by itself; the same on all. Between two steps. Collective.
  Asked ask(bool wants_rolling) {
    std::array<int64_t, 3> most = {static_cast<int64_t>(requests_.stopped()), requests_.saves(),
                                   wants_rolling ? 1 : 0};
    if (world_.size() > 1)
      world_.all_reduce({most.data(), 3, DType::kI64}, ReduceOp::kMax).wait_host();
    const bool is_save = most[1] > saves_seen_;
    saves_seen_ = most[1];
    return {static_cast<Stop>(most[0]), is_save, most[2] > 0};
  }

 private:
  Communicator& world_;
  const Requests& requests_;
  int64_t saves_seen_ = 0;
};

}  // namespace kuafu
