// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/pace.h"

#include <algorithm>

namespace kuafu {

void Pace::rest() {
  using Clock = std::chrono::steady_clock;
  constexpr Clock::duration kLongest = std::chrono::milliseconds(100);  // a part was held up itself
  const Clock::time_point now = Clock::now();
  std::unique_lock lock(mutex_);
  if (began_ != Clock::time_point{}) {
    const Clock::duration pause = std::min((kShare - 1) * (now - began_), kLongest);
    changed_.wait_until(lock, now + pause, [&] { return is_hurried_; });
  }
  began_ = Clock::now();
}

void Pace::hurry() {
  const std::lock_guard lock(mutex_);
  is_hurried_ = true;
  changed_.notify_all();
}

}  // namespace kuafu
