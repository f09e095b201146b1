// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace kuafu {

/// How a thread that writes beside computing ranks leaves them the cores: after each small part of
/// its work it rests, until somebody waits for it. A save then takes longer, and no step much.
class Pace {
 public:
  /// One part of work in so much time as kShare parts take: 1/32 of a core at most.
  static constexpr int kShare = 32;
  static constexpr size_t kPartBytes = 1 << 20;

  /// The writer's, after a part. The first call begins.
  void rest();
  /// Of whoever waits: no rest from now on.
  void hurry();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_hurried_ = false;
  std::chrono::steady_clock::time_point began_{};  ///< of the part under way
};

}  // namespace kuafu
