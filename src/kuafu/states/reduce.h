// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kuafu/comm/work.h"
#include "kuafu/states/bucket.h"
#include "kuafu/states/residency.h"

namespace kuafu {

/// A sum that goes on round by round, at the places where the program says so and nowhere else.
class SumRounds {
 public:
  virtual ~SumRounds() = default;
  /// Waits for the messages of the round under way, adds what they brought and posts the next
  /// round; false once none is left. @pre every replica calls it at the same places of its program:
  /// what one sends in a round, another receives in its round of the same number.
  virtual bool advance() = 0;
};

/// A sum under way. Its buffers live until it is waited for.
class PendingSum {
 public:
  explicit PendingSum(Work work, std::function<void()> then = {})
      : then_(std::move(then)), work_(std::move(work)) {}
  explicit PendingSum(std::unique_ptr<SumRounds> rounds) : rounds_(std::move(rounds)) {}
  void wait() {
    while (advance()) {
    }
    rounds_.reset();
    work_.wait();
    if (then_) then_();
  }
  /// One round further, where it has rounds; false once none is left.
  bool advance() { return rounds_ != nullptr && rounds_->advance(); }
  /// `more` runs after the sum is complete.
  void then(std::function<void()> more) {
    then_ = [first = std::move(then_), more = std::move(more)] {
      if (first) first();
      more();
    };
  }

 private:
  std::function<void()> then_;  // holds the buffers: outlives the work
  Work work_;
  std::unique_ptr<SumRounds> rounds_;
};

/// A sum under way, and where my part of it will lie; undefined where I have none.
struct StartedSum {
  Tensor mine;
  PendingSum sum;
};

/// Sees each replica's gradients before they are summed over the replicas.
struct GradientWatch {
  /// A part of p's gradient (p's shard), which is its sum over all calls and `replicas`.
  std::function<void(const Param& p, const Tensor& part, const Axes& replicas)> own;
  /// p's gradient, which nobody sums, has grown by a part.
  std::function<void(const Param& p, bool is_last)> grown;
};

/// How the gradients of replicas become their sum: what a Store asks of it. parallel/reduce has the
/// ways there are. Every replica makes the same calls in the same order.
class Reduce {
 public:
  virtual ~Reduce() = default;
  /// A bucket that will be summed, before the first sum. Collective over its replicas.
  virtual void attach(const FlatBucket& bucket) { (void)bucket; }
  /// Starts the sum of everyone's flat (elements), over the scheme's own axes and then over the
  /// replicas. My part of it comes to lie in `flat`, or, where gradients are kept in parts, in a
  /// tensor of its own, of the caller's category. @pre the bucket outlives the sum
  virtual StartedSum start(const FlatBucket& bucket, const Tensor& flat, Portion gradients) = 0;
  /// After an update: every replica's part of the values comes to all of them. `values` (elements)
  /// are the parameters; undefined where these lie for themselves.
  virtual Work share(const FlatBucket& bucket, const Tensor& values) = 0;

  void watch(GradientWatch watch) { watch_ = std::move(watch); }

 protected:
  /// To be called with what `flat` holds before it is summed over the replicas.
  void show_own(const FlatBucket& bucket, const Tensor& flat) const {
    if (!watch_.own) return;
    for (const FlatSlot& s : bucket.slots) watch_.own(*s.param, in_shape(s, flat), bucket.replicas);
  }

 private:
  GradientWatch watch_;
};

}  // namespace kuafu
