// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

namespace kuafu {

/// How often a run saves on its way besides when it is told to, so that it has a last good state.
struct RollingPace {
  double least_s = 10;  ///< seconds between the end of a save and the next
  double share = 0.01;  ///< of the time, at most, that saves take
};

/// Saves on the way that nobody asked for: when the next is due, by this process's clock, and
/// which of those that were made a newer one replaces.
class RollingSaves {
 public:
  explicit RollingSaves(RollingPace pace) : pace_(pace) {}

  /// At once, until a save of any kind was made.
  bool is_due() const { return Clock::now() >= due_; }
  /// A save of any kind that took so long has ended.
  void put_off(double took_s) {
    const std::chrono::duration<double> wait(std::max(pace_.least_s, took_s / pace_.share));
    due_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
  }

  void add(int64_t step) { steps_.push_back(step); }
  /// Those of steps before this one, once.
  std::vector<int64_t> take_before(int64_t step) {
    const auto end =
        std::find_if(steps_.begin(), steps_.end(), [&](int64_t s) { return s >= step; });
    std::vector<int64_t> taken(steps_.begin(), end);
    steps_.erase(steps_.begin(), end);
    return taken;
  }

 private:
  using Clock = std::chrono::steady_clock;

  RollingPace pace_;
  Clock::time_point due_ = {};
  std::vector<int64_t> steps_;  ///< rising
};

}  // namespace kuafu
