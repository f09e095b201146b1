// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace kuafu::device {

/// A link of a rate, as the moments at which bytes have passed it. Who sleeps too long may make
/// that up, but an idle link saves nothing: from any begin() on, no more has passed at any moment
/// than the rate allows.
class TokenBucket {
 public:
  /// 1 GB is 10^9 bytes; without a rate nothing waits. @pre a rate is positive.
  explicit TokenBucket(std::optional<double> gbs) : ns_per_byte_(gbs ? 1 / *gbs : 0) {}

  /// The link was idle until now.
  void begin(int64_t now_ns) { passed_ = std::max(passed_, static_cast<double>(now_ns)); }

  /// The moment at which `bytes` more have passed: who sends them waits for it.
  int64_t take(int64_t bytes, int64_t now_ns) {
    passed_ = std::max(passed_, static_cast<double>(now_ns) - kMostLateNs);
    passed_ += static_cast<double>(bytes) * ns_per_byte_;
    return static_cast<int64_t>(passed_);
  }

 private:
  static constexpr double kMostLateNs = 10e6;  ///< lateness beyond this is lost
  double ns_per_byte_;
  double passed_ = 0;  ///< ns; doubles are whole nanoseconds for 104 days
};

/// One that several threads send over.
class SharedLink {
 public:
  explicit SharedLink(std::optional<double> gbs) : bucket_(gbs) {}
  void begin(int64_t now_ns) {
    const std::lock_guard lock(mutex_);
    bucket_.begin(now_ns);
  }
  int64_t take(int64_t bytes, int64_t now_ns) {
    const std::lock_guard lock(mutex_);
    return bucket_.take(bytes, now_ns);
  }

 private:
  std::mutex mutex_;
  TokenBucket bucket_;
};

}  // namespace kuafu::device
