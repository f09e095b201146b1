// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kuafu/simulate/replay.h"

namespace kuafu {

CostModel cost_model(const ClusterPlan& cluster) {
  const auto link = [](double latency_us, double bandwidth_gbs) {
    return Link{std::llround(latency_us * 1e6), std::llround(bandwidth_gbs * 1e9)};
  };
  return {link(cluster.intra_latency_us, cluster.intra_bandwidth_gbs),
          link(cluster.inter_latency_us, cluster.inter_bandwidth_gbs),
          static_cast<int>(cluster.ranks_per_node)};
}

ComputeModel compute_model(const ClusterPlan& cluster) {
  return {.flops_per_second = cluster.compute_gflops * 1e9,
          .bytes_per_second = cluster.memory_gbs * 1e9,
          .host_bytes_per_second = cluster.host_gbs * 1e9,
          .disk_bytes_per_second = cluster.disk_gbs * 1e9,
          .host_memory_bytes_per_second = cluster.host_memory_gbs * 1e9};
}

int64_t PricedTimes::makespan_ps() const {
  int64_t latest = 0;
  for (const RankTime& rank : ranks) latest = std::max(latest, rank.finish_ps);
  return latest;
}

}  // namespace kuafu
