// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/stale/push_witness.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <utility>

#include "kuafu/base/trace.h"
#include "kuafu/meter/book.h"

namespace kuafu {

/// What happens in the scope is booked and traced nowhere, and timed.
class PushWitness::Apart {
 public:
  explicit Apart(double& seconds) : seconds_(seconds) {}
  ~Apart() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double& seconds_;
  const BookScope unbooked_{nullptr};
  const TraceScope untraced_{nullptr};
  const at::NoGradGuard no_grad_;
};

namespace {

ServerState copy_of(const Tensor& values, const Optimizer& optimizer) {
  ServerState state{values.clone(), optimizer.state()};
  for (SlotTensor& slot : state.optimizer.tensors) slot.tensor = slot.tensor.clone();
  return state;
}

}  // namespace

void PushWitness::see_push(MadePush push, const FlatBucket& layout) {
  const Apart apart(seconds_);
  push.gradient = push.gradient.clone();
  push.values = at::empty_like(push.gradient);
  take_values(layout, push.values, {0, layout.elements()});
  made_.push_back(std::move(push));
}

void PushWitness::see_before(const AppliedPush& push, const Tensor& gradient, const Tensor& values,
                             const Optimizer& optimizer) {
  const Apart apart(seconds_);
  ServedUpdate update{push, gradient.clone(), {}, {}};
  // One update follows the other: it starts from what that one left, or is found to be wrong.
  const int64_t version = optimizer.state().num_steps;
  const bool follows = !updates_.empty() && updates_.back().after.optimizer.num_steps == version;
  update.before = follows ? updates_.back().after : copy_of(values, optimizer);
  updates_.push_back(std::move(update));
}

void PushWitness::see_after(const Tensor& values, const Optimizer& optimizer) {
  const Apart apart(seconds_);
  updates_.back().after = copy_of(values, optimizer);
}

double PushWitness::take_seconds() { return std::exchange(seconds_, 0); }

}  // namespace kuafu
