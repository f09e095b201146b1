// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/cost_model.h"

#include <algorithm>
#include <bit>

namespace kuafu {

namespace {

// Sizes of the n parts of a buffer without their addresses.
struct Parts {
  int64_t count, n, element;
  int64_t bytes(int64_t i) const { return (count / n + (i % n < count % n ? 1 : 0)) * element; }
};

void add_peer(WireTraffic& t, int peer) {
  const auto at = std::lower_bound(t.wire_peers.begin(), t.wire_peers.end(), peer);
  if (at == t.wire_peers.end() || *at != peer) t.wire_peers.insert(at, peer);
}

void add_sent(WireTraffic& t, int to, int64_t bytes) {
  if (bytes == 0) return;
  t.sent += bytes;
  t.messages += 1;
  add_peer(t, to);
}

void add_received(WireTraffic& t, int from, int64_t bytes) {
  if (bytes == 0) return;
  t.received += bytes;
  add_peer(t, from);
}

// Reduce-scatter sends parts r, r-1, ..., r-n+2, then all-gather r+1, r, ..., r-n+3.
WireTraffic ring_all_reduce(const Buffer& b, int n, int r) {
  WireTraffic t;
  const Parts parts{b.count, n, size_of(b.dtype)};
  const int64_t whole = b.bytes();
  const int64_t num_full = std::min<int64_t>(b.count, n);  // parts that are not empty
  const auto filled = [&](int64_t i) { return parts.bytes(i) > 0 ? 1 : 0; };
  t.sent = 2 * whole - parts.bytes(r + 1) - parts.bytes(r + 2);
  t.received = 2 * whole - parts.bytes(r) - parts.bytes(r + 1);
  t.messages = 2 * num_full - filled(r + 1) - filled(r + 2);
  if (t.sent > 0) add_peer(t, (r + 1) % n);
  if (t.received > 0) add_peer(t, (r + n - 1) % n);
  return t;
}

// Every rank passes n - 1 parts on.
WireTraffic ring_pass(int64_t part, int n, int r) {
  WireTraffic t;
  if (part == 0) return t;
  t.sent = t.received = (n - 1) * part;
  t.messages = n - 1;
  add_peer(t, (r + 1) % n);
  add_peer(t, (r + n - 1) % n);
  return t;
}

// One buffer travels first, first + 1, ... through all n ranks.
WireTraffic chain(int64_t bytes, int first, int n, int r) {
  WireTraffic t;
  const int last = (first + n - 1) % n;
  if (r != last) add_sent(t, (r + 1) % n, bytes);
  if (r != first) add_received(t, (r + n - 1) % n, bytes);
  return t;
}

WireTraffic direct(const Call& call, int n, int r) {
  WireTraffic t;
  const int64_t element = size_of(call.dtype());
  for (int i = 0; i < n; ++i) {
    if (i == r) continue;
    add_sent(t, i, call.splits.send[static_cast<size_t>(i)] * element);
    add_received(t, i, call.splits.recv[static_cast<size_t>(i)] * element);
  }
  return t;
}

}  // namespace

WireTraffic convention(const Call& call, int n, int rank) {
  WireTraffic t;
  if (n == 1) return t;
  switch (call.verb) {
    case Verb::kAllReduce:
      return ring_all_reduce(call.in, n, rank);
    case Verb::kAllGather:
      return ring_pass(call.in.bytes(), n, rank);
    case Verb::kReduceScatter:
      return ring_pass(call.out.bytes(), n, rank);
    case Verb::kBroadcast:
      return chain(call.in.bytes(), call.root, n, rank);
    case Verb::kReduce:
      return chain(call.in.bytes(), (call.root + 1) % n, n, rank);
    case Verb::kAllToAll:
      return direct(call, n, rank);
    case Verb::kSend:
    case Verb::kRecv:
    case Verb::kSendRecv:
      if (call.root >= 0 && call.root != rank) add_sent(t, call.root, call.in.bytes());
      if (call.from >= 0 && call.from != rank) add_received(t, call.from, call.out.bytes());
      return t;
    case Verb::kBarrier:
      return t;
  }
  return t;
}

const Link& CostModel::link(int world_rank_a, int world_rank_b) const {
  return world_rank_a / ranks_per_node == world_rank_b / ranks_per_node ? intra_node : inter_node;
}

const Link& CostModel::link(const std::vector<int>& members) const {
  for (const int member : members) {
    if (member / ranks_per_node != members.front() / ranks_per_node) return inter_node;
  }
  return intra_node;
}

int64_t transfer_ps(const Link& link, int64_t bytes) {
  KUAFU_REQUIRE(link.bytes_per_second > 0 && link.latency_ps >= 0, "a link of ",
                link.bytes_per_second, " bytes/s and ", link.latency_ps,
                " ps latency; the bandwidth must be positive, the latency not negative");
  const auto ps = (static_cast<__int128>(bytes) * 1'000'000'000'000 + link.bytes_per_second - 1) /
                  link.bytes_per_second;
  return static_cast<int64_t>(ps);
}

int64_t price_ps(Verb verb, int64_t bytes, int n, const Link& link) {
  const int64_t steps = n - 1;
  const int64_t part = (bytes + n - 1) / n;
  switch (verb) {
    case Verb::kSend:
    case Verb::kRecv:
    case Verb::kSendRecv:
      return link.latency_ps + transfer_ps(link, bytes);
    case Verb::kAllReduce:
      return 2 * steps * (link.latency_ps + transfer_ps(link, part));
    case Verb::kAllGather:
    case Verb::kReduceScatter:
    case Verb::kAllToAll:
      return steps * (link.latency_ps + transfer_ps(link, part));
    case Verb::kBroadcast:
    case Verb::kReduce:
      return n == 1 ? 0 : steps * link.latency_ps + transfer_ps(link, bytes);
    case Verb::kBarrier:
      return std::bit_width(static_cast<unsigned>(steps)) * link.latency_ps;
  }
  return 0;
}

}  // namespace kuafu
