// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/algorithms/program.h"

#include <set>

namespace kuafu::algorithms {

void Round::send(int to, BufferSlice what) {
  if (what.range.count > 0) sends.push_back({to, what});
}

void Round::receive(int from, BufferSlice where) {
  if (where.range.count > 0) receives.push_back({from, where});
}

namespace {

void add(WireTraffic& total, std::set<int>& peers, const Program& program, int64_t element_bytes) {
  for (const Round& round : program.rounds) {
    for (const Transfer& t : round.sends) {
      if (t.span.range.count == 0) continue;
      total.sent += t.span.range.count * element_bytes;
      total.messages += 1;
      peers.insert(t.peer);
    }
    for (const Transfer& t : round.receives) {
      if (t.span.range.count == 0) continue;
      total.received += t.span.range.count * element_bytes;
      peers.insert(t.peer);
    }
  }
}

}  // namespace

WireTraffic traffic(const Program& program, int64_t element_bytes) {
  return traffic(Lanes{1, [&](int64_t) { return program; }}, element_bytes);
}

WireTraffic traffic(const Lanes& lanes, int64_t element_bytes) {
  WireTraffic total;
  std::set<int> peers;
  for (int64_t k = 0; k < lanes.num_lanes; ++k) add(total, peers, lanes.lane(k), element_bytes);
  total.wire_peers.assign(peers.begin(), peers.end());
  return total;
}

}  // namespace kuafu::algorithms
