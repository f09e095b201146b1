// SPDX-License-Identifier: Apache-2.0
#include "kuafu/states/tier_copies.h"

#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>

#include "kuafu/base/trace.h"

namespace kuafu {
namespace {

using device::Direction;

TraceQueue traced(Direction queue) {
  return queue == Direction::kToDevice ? TraceQueue::kToDevice : TraceQueue::kToHost;
}

}  // namespace

/// When queues had the copies that nobody has waited for yet.
class CopyTimes final : public device::CopyWatch {
 public:
  struct Span {
    int64_t begun_ns = 0, ended_ns = 0;
  };
  void waits(const device::Ticket&, const device::Ticket&) override {}
  void begins(const device::Ticket& ticket) override {
    const std::lock_guard lock(mutex_);
    spans_[key(ticket)].begun_ns = clock_.now_ns();
  }
  void ends(const device::Ticket& ticket) override {
    const std::lock_guard lock(mutex_);
    spans_[key(ticket)].ended_ns = clock_.now_ns();
  }
  /// Of a copy that is done.
  Span take(const device::Ticket& ticket) {
    const std::lock_guard lock(mutex_);
    const auto found = spans_.extract(key(ticket));
    return found.empty() ? Span{} : found.mapped();
  }

 private:
  static std::pair<Direction, int64_t> key(const device::Ticket& t) { return {t.queue, t.number}; }

  device::SteadyClock clock_;
  std::mutex mutex_;
  std::map<std::pair<Direction, int64_t>, Span> spans_;
};

TierCopies::TierCopies(bool has_memory, std::optional<double> gbs) {
  if (!has_memory) return;
  times_ = std::make_unique<CopyTimes>();
  queues_ =
      device::make_copy_threads({.to_device_gbs = gbs, .to_host_gbs = gbs, .watch = times_.get()});
}

TierCopies::~TierCopies() = default;

int64_t TierCopies::copied(Direction queue) const {
  return has_memory() ? queues_->stats(queue).bytes : counted_[static_cast<size_t>(queue)];
}

TierCopies::Moving TierCopies::copy(Direction queue, const Tensor& to, const Tensor& from,
                                    std::string_view what) {
  const auto bytes = static_cast<int64_t>(from.nbytes());
  if (what == kCache) of_cache_[static_cast<size_t>(queue)] += bytes;
  TraceRecorder* trace = current_trace();
  Moving moving{{queue, 0}, trace == nullptr ? -1 : trace->copy(what, traced(queue), bytes), false};
  if (has_memory()) {
    moving.ticket = queues_->copy(queue, {to.mutable_data_ptr(), from.const_data_ptr(), bytes});
  } else {
    counted_[static_cast<size_t>(queue)] += bytes;
  }
  return moving;
}

void TierCopies::wait(Moving& moving) {
  if (moving.is_awaited) return;
  moving.is_awaited = true;
  TraceRecorder* trace = moving.event < 0 ? nullptr : current_trace();
  const int64_t traced_from = trace == nullptr ? 0 : trace->now_ns();
  CopyTimes::Span span;
  if (has_memory()) {
    if (!queues_->is_done(moving.ticket)) {
      const auto start = std::chrono::steady_clock::now();
      queues_->wait(moving.ticket);
      const auto waited = std::chrono::steady_clock::now() - start;
      if (waited_ != nullptr) *waited_ += std::chrono::duration<double>(waited).count();
    }
    span = times_->take(moving.ticket);
  }
  if (trace != nullptr) trace->arrival(moving.event, traced_from, span.begun_ns, span.ended_ns);
}

}  // namespace kuafu
