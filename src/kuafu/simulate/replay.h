// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kuafu/base/trace.h"
#include "kuafu/comm/cost_model.h"
#include "kuafu/comm/ledger.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// How fast a rank computes: local work takes the longer of its arithmetic and its memory traffic.
/// And how fast it copies between tiers of memory.
struct ComputeModel {
  double flops_per_second = 50e9;
  double bytes_per_second = 10e9;
  double host_bytes_per_second = 10e9;         ///< between device and host, each direction
  double disk_bytes_per_second = 1e9;          ///< both directions together
  double host_memory_bytes_per_second = 10e9;  ///< of the host's memory, for a rank's update there
};

/// What a cluster description means in prices.
CostModel cost_model(const ClusterPlan& cluster);
ComputeModel compute_model(const ClusterPlan& cluster);

/// Virtual time of one rank, picoseconds.
struct RankTime {
  int64_t finish_ps = 0;   ///< end of its program
  int64_t busy_ps = 0;     ///< local work
  int64_t exposed_ps = 0;  ///< spent in waits: communication that nothing hid
  int64_t stall_ps = 0;    ///< spent in waits for copies between tiers

  bool operator==(const RankTime&) const = default;
};

/// What moved a rank's clock, or a queue of copies beside it, told in the order of its program.
struct ReplaySpan {
  enum class Kind : uint8_t {
    kWork,      ///< local work
    kTransfer,  ///< waited for a call under way
    kWait,      ///< waited for a call that not all ranks had begun, or a message not yet sent
    kStall,     ///< waited for a copy
    kCopy,      ///< of `queue`, which had it for so long: the rank goes on
    kMark,      ///< no time: what came since the rank's mark before was the phase `name`
  };
  int rank = 0;
  Kind kind = Kind::kWork;
  int64_t start_ps = 0, end_ps = 0;
  Verb verb = Verb::kBarrier;               ///< kTransfer, kWait
  int32_t group = -1;                       ///< kTransfer, kWait: of the rank's Trace::groups
  int32_t name = -1;                        ///< kMark, kStall, kCopy: of the rank's Trace::names
  TraceQueue queue = TraceQueue::kCompute;  ///< kCopy
};
using ReplayObserver = std::function<void(const ReplaySpan&)>;

struct PricedTimes {
  std::vector<RankTime> ranks;
  int64_t makespan_ps() const;
  double makespan_seconds() const { return static_cast<double>(makespan_ps()) * 1e-12; }
};

/// Gives every event of the traces of all ranks of a simulated world a time, in integer picoseconds,
/// so that equal runs are equal to the last digit.
///
/// Each rank has a clock and one port. Local work moves the clock. A collective starts when the
/// last member has issued it and the ports of all members are free, and holds them for its price
/// (CostModel); a group that crosses nodes pays the slower link. A send leaves when the sender's
/// port is free, holds it for bytes / bandwidth, and arrives a latency later, whether or not the
/// receive has been issued. A wait moves the clock to the end of its call.
///
/// Beside it a rank has three queues of copies, one to each side of its link to the host and one for
/// its disk. A copy begins when it was asked for and its queue is free; an arrival moves the clock to
/// its end.
///
/// Throws RankLost with the table of who waits for whom where the program cannot end, and
/// CollectiveMismatch where members of a group call different verbs at one position.
/// The observer, where there is one, is told of everything that moves a clock.
/// @pre traces begin with the recorder: their calls are numbered from 0.
PricedTimes replay(const std::vector<Trace>& traces, const CostModel& prices,
                   const ComputeModel& compute, const ReplayObserver& observer = {});
PricedTimes replay(const std::vector<Trace>& traces, const ClusterPlan& cluster,
                   const ReplayObserver& observer = {});

}  // namespace kuafu
