// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kuafu/comm/communicator.h"
#include "kuafu/parallel/data/interface.h"

// Sums of flat buffers over ranks. Internal to parallel/data.
namespace kuafu {

/// A sum under way. Its buffers live until it is waited for.
class PendingSum {
 public:
  explicit PendingSum(Work work, std::function<void()> then = {})
      : then_(std::move(then)), work_(std::move(work)) {}
  void wait() {
    work_.wait();
    if (then_) then_();
  }
  /// Moves it on without waiting.
  void test() { work_.test(); }
  /// `more` runs after the sum is complete.
  void then(std::function<void()> more);

 private:
  std::function<void()> then_;  // holds the buffers: outlives the work
  Work work_;
};

/// The sum of every rank's flat (elements) in place.
PendingSum sum_everywhere(const Tensor& flat, Communicator& c, SumOrder order);

/// Part r of the sum of every rank's flat (n * part) in `out` (part) of rank r, which may be part r
/// of flat itself.
PendingSum sum_in_parts(const Tensor& out, const Tensor& flat, Communicator& c, SumOrder order);

}  // namespace kuafu
