// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

namespace kuafu::device {

/// Time as a throttle sees it, so that tests need not wait. May be asked on several threads.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() = 0;
  virtual void sleep_until(int64_t ns) = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t now_ns() override {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void sleep_until(int64_t ns) override {
    std::this_thread::sleep_until(
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns)));
  }
};

}  // namespace kuafu::device
