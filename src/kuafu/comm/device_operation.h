// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "kuafu/comm/call.h"
#include "kuafu/device/device.h"

namespace kuafu {

/// The same, as device::combine is told.
device::Combine on_device(ReduceOp op);

/// An operation between threads that share a card: whoever posts last starts all of it on one
/// stream, behind what every caller's stream had to do, and each caller's stream goes on behind its
/// end. The host waits for the others' calls alone. Every element is read once from every rank,
/// combined in rank order as on the host, and written once to each.
class DeviceOperation {
 public:
  explicit DeviceOperation(size_t participants) : ready_(participants) {}

  /// Marks where the caller's stream is: its buffers are as they should be from there on.
  void post(size_t index, const Call& call);
  /// @pre all have posted, and agree
  void start(const std::vector<Call>& calls, const device::DeviceStream& stream);
  bool has_started() const { return end_.has_value(); }
  /// Orders a caller's stream behind the end. @pre it has started
  void hold(void* stream) const { end_->hold(device::StreamView(stream)); }
  /// Blocks the host until the end.
  void synchronize() const { end_->synchronize(); }

 private:
  std::vector<std::optional<device::Event>> ready_;
  std::optional<device::Event> end_;
};

}  // namespace kuafu
