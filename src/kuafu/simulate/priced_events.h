// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/base/trace.h"
#include "kuafu/comm/ledger.h"

namespace kuafu {

/// The phase that a training step is.
inline constexpr const char* kStepPhase = "step";

/// What has a price in a rank's trace.
struct PricedEvent {
  enum class Kind : uint8_t {
    kCompute,  ///< local work since the event before
    kIssue,    ///< a call was made
    kWait,     ///< the rank waits for that call
    kCopy,     ///< a queue was asked for a copy between tiers of memory
    kArrival,  ///< the rank waits for that copy
    kMark,     ///< all since the mark before was the phase `name`
  };
  Kind kind = Kind::kCompute;
  Verb verb = Verb::kBarrier;
  int64_t group = -1;  ///< TraceGroup::number
  int32_t entry = -1;  ///< of Trace::groups
  int32_t peer = -1;   ///< group index: root, receiver of send and send_recv, sender of recv
  int32_t from = -1;   ///< group index: sender of send_recv
  int32_t tag = 0;     ///< of messages
  int32_t name = 0;    ///< kMark, kCopy, kArrival: of Trace::names
  TraceQueue queue = TraceQueue::kCompute;  ///< kCopy
  int64_t sequence = 0;  ///< of the call or copy on this rank: kIssue, kWait; kCopy, kArrival
  int64_t bytes = 0;     ///< of the verb's argument; copied
  int64_t flops = 0, bytes_moved = 0;  ///< kCompute
  int64_t host_bytes_moved = 0;        ///< kCompute: of states on the host
};

/// The events of a trace of the simulated world. Ops between two calls, or two marks, are one:
/// arithmetic of one may overlap memory traffic of another. A mark is the end of a step, or of a
/// phase directly inside one. Throws ConfigError where a group has no number in its world.
std::vector<PricedEvent> priced_events(const Trace& trace);

}  // namespace kuafu
