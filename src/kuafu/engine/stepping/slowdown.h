// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <time.h>

#include <chrono>
#include <functional>
#include <thread>

namespace kuafu {

/// Makes a rank slower for experiments: at the end of its scope it sleeps a multiple of what the
/// thread has computed in it, so that the scope takes `factor()` times as long. Null: nothing.
class Slowdown {
 public:
  explicit Slowdown(const std::function<double()>& factor)
      : factor_(factor ? factor() : 1), start_(factor_ > 1 ? seconds() : 0) {}
  ~Slowdown() {
    if (factor_ <= 1) return;
    std::this_thread::sleep_for(
        std::chrono::duration<double>((factor_ - 1) * (seconds() - start_)));
  }
  Slowdown(const Slowdown&) = delete;
  Slowdown& operator=(const Slowdown&) = delete;

 private:
  static double seconds() {  // of this thread alone, whoever shares its core
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  double factor_, start_;
};

}  // namespace kuafu
