// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/comm/cost_model.h"
#include "kuafu/comm/trace.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Where one rank's virtual time went, in picoseconds: sums in any order agree.
struct RankTime {
  int64_t finish_ps = 0;
  int64_t compute_ps = 0;
  int64_t exposed_ps = 0;  ///< waiting for communication that computation did not hide
  bool operator==(const RankTime&) const = default;
};

struct Timeline {
  std::vector<RankTime> ranks;
  int64_t makespan_ps() const;
  double makespan_seconds() const { return static_cast<double>(makespan_ps()) * 1e-12; }
};

/// What local work costs: its FLOPs and its memory traffic, one after the other.
struct ComputeModel {
  double flops_per_second = 50e9;
  double bytes_per_second = 10e9;
  int64_t price_ps(int64_t flops, int64_t bytes) const;
};

/// The [cluster] of a plan as prices.
CostModel link_prices(const ClusterPlan& cluster);
ComputeModel compute_prices(const ClusterPlan& cluster);

/// Gives every event of every rank a time. A collective starts when the last rank of its group has
/// issued it and the group's previous one is over, and runs beside computation until a rank waits
/// for it; a send and its receive start when both are issued.
/// Throws CollectiveMismatch where two ranks of a group differ in their k-th call, RankLost with
/// the table of who waits where when nothing can advance.
Timeline replay(const SimulatedWorld& world, const CostModel& links, const ComputeModel& compute);
Timeline replay(const SimulatedWorld& world, const ClusterPlan& cluster);

}  // namespace kuafu
