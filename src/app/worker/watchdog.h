// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace kuafu {

/// Calls on_timeout on a thread of its own when it lives longer than that: a rank inside a kernel
/// cannot be interrupted otherwise.
class Watchdog {
 public:
  Watchdog(double seconds, std::function<void()> on_timeout)
      : thread_([this, seconds, on_timeout = std::move(on_timeout)] {
          std::unique_lock lock(mutex_);
          // More does not fit into a clock's nanoseconds.
          const std::chrono::duration<double> limit(std::min(seconds, kLongest));
          if (!ended_.wait_for(lock, limit, [this] { return is_over_; })) on_timeout();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  static constexpr double kLongest = 1e8;  ///< s: three years

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace kuafu
