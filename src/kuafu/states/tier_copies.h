// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "kuafu/device/transfer.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

class CopyTimes;

/// The copies of one rank between its device and its host, with their events in its trace. Used by
/// the rank's own thread.
class TierCopies {
 public:
  /// One under way, until it was waited for.
  struct Moving {
    device::Ticket ticket = {};
    int64_t event = -1;  ///< of the trace
    bool is_awaited = true;
  };

  /// What is copied, where several kinds use the queues.
  static constexpr std::string_view kCache = "cache";

  /// `has_memory`: else tensors are meta, and what would be copied is counted. `gbs`: what copies are
  /// held back to, each direction.
  TierCopies(bool has_memory, std::optional<double> gbs);
  ~TierCopies();
  TierCopies(const TierCopies&) = delete;
  TierCopies& operator=(const TierCopies&) = delete;

  bool has_memory() const { return queues_ != nullptr; }
  /// Comes back at once. Both tensors stay until it was waited for. @pre `what` is constant text
  Moving copy(device::Direction queue, const Tensor& to, const Tensor& from, std::string_view what);
  void wait(Moving& moving);
  /// Bytes that were copied, as the queue counts them.
  int64_t copied(device::Direction queue) const;
  /// Bytes of keys and values that were asked for.
  int64_t of_cache(device::Direction queue) const { return of_cache_[static_cast<size_t>(queue)]; }

  /// Seconds in which the rank stood still in wait() are added to `seconds`; null: nowhere.
  void count_waits(double* seconds) { waited_ = seconds; }

 private:
  int64_t counted_[2] = {0, 0};   // bytes by direction, without memory
  int64_t of_cache_[2] = {0, 0};  // the same, with memory and without
  double* waited_ = nullptr;
  std::unique_ptr<CopyTimes> times_;            // outlives the queues
  std::unique_ptr<device::CopyQueues> queues_;  // null without memory
};

}  // namespace kuafu
