// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/compare.h"

#include <algorithm>

#include "kuafu/base/errors.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu {
namespace {

std::string describe(const AxisTraffic& t) {
  int64_t calls = 0;
  for (const auto& [verb, count] : t.calls) calls += count;
  std::string on_wire;
  for (const int rank : t.wire_peers) on_wire += text(on_wire.empty() ? "" : " ", rank);
  return text(t.bytes_sent, " bytes sent, ", t.bytes_received, " received, ", t.messages,
              " messages, ", t.peers, " peers, on the wire {", on_wire, "}, ", calls, " calls, ",
              t.counting);
}

std::string difference(const TrafficByAxis& real, const TrafficByAxis& simulated,
                       Transport transport) {
  for (const auto& [axis, t] : real) {
    const auto found = simulated.find(axis);
    if (found == simulated.end()) return text("no traffic on ", axis, " for ", describe(t));
    AxisTraffic expected = found->second;
    // Messages of a library's MPI are on its wire; a simulation that stands for threads has none.
    if (t.counting == "wire" && transport == Transport::kThreads) expected.counting = t.counting;
    if (expected == t) continue;
    return text("traffic on ", axis, ": ", describe(found->second), " for ", describe(t));
  }
  return real.size() == simulated.size() ? "" : "traffic on an axis that no rank used";
}

}  // namespace

std::string difference(const RankResult& real, const RankResult& simulated, Transport transport) {
  const std::string traffic = difference(real.traffic, simulated.traffic, transport);
  if (!traffic.empty()) return traffic;
  if (simulated.flops != real.flops) return text("FLOPs ", simulated.flops, " for ", real.flops);
  if (simulated.flops_recomputed != real.flops_recomputed) {
    return text("recomputed FLOPs ", simulated.flops_recomputed, " for ", real.flops_recomputed);
  }
  if (simulated.flops_optimizer != real.flops_optimizer && real.skipped.empty()) {
    return text("optimizer FLOPs ", simulated.flops_optimizer, " for ", real.flops_optimizer);
  }
  if (simulated.peak_bytes != real.peak_bytes) {
    return text("peak ", simulated.peak_bytes, " bytes for ", real.peak_bytes);
  }
  return {};
}

std::string difference(const Plan& plan, const Registries& registries,
                       const std::vector<RankResult>& real, Transport transport) {
  const Prediction predicted = simulate(plan, registries, transport);
  for (size_t r = 0; r < real.size(); ++r) {
    const std::string what = difference(real[r], predicted.ranks[r], transport);
    if (!what.empty()) return text("rank ", r, " simulated: ", what);
  }
  return {};
}

}  // namespace kuafu
