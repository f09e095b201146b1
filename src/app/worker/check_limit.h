// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace kuafu {

/// Calls `on_late` once, on a thread of its own, where one thing takes longer than the limit: what
/// waits for ever cannot be interrupted otherwise. What is to begin then waits.
class CheckLimit {
 public:
  CheckLimit(double seconds, std::function<void()> on_late)
      : limit_(std::min(seconds, kLongest)), on_late_(std::move(on_late)) {
    restart();
    thread_ = std::thread([this] { watch(); });
  }
  ~CheckLimit() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  CheckLimit(const CheckLimit&) = delete;
  CheckLimit& operator=(const CheckLimit&) = delete;

  /// The next thing begins; `note` is called before it is watched.
  void restart(const std::function<void()>& note = [] {}) {
    const std::lock_guard lock(mutex_);
    note();
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kLongest = 1e8;  ///< s: more does not fit into a clock's nanoseconds

  void watch() {
    std::unique_lock lock(mutex_);
    while (!is_over_ && Clock::now() < deadline_) {
      const Clock::time_point until = deadline_;
      ended_.wait_until(lock, until, [this] { return is_over_; });
    }
    if (!is_over_) on_late_();
  }

  const std::chrono::duration<double> limit_;
  std::function<void()> on_late_;
  std::mutex mutex_;
  std::condition_variable ended_;
  Clock::time_point deadline_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace kuafu
