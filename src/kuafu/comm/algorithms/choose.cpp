// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kuafu/comm/algorithms/algorithms.h"

namespace kuafu::algorithms {

namespace {

// Below: few rounds count more than few bytes.
constexpr int64_t kSmallBytes = 64 * 1024;
// All-reduce, in bytes of the whole: recursive doubling up to the first, halving and doubling up to
// the second (fewer rounds than the ring, the same bytes), then the ring.
constexpr int64_t kDoublingBytes = 32 * 1024;
constexpr int64_t kDoublingBytesOfTwo = 96 * 1024;
constexpr int64_t kHalvingBytes = 2 * 1024 * 1024;
constexpr int64_t kHalvingBytesOfTwo = 8 * 1024 * 1024;
// Pieces of longer ones: they travel while the piece before them is added.
constexpr int64_t kPieceBytes = 1024 * 1024;

int64_t num_pieces(int64_t bytes) {
  return std::max<int64_t>(1, (bytes + kPieceBytes - 1) / kPieceBytes);
}

Lanes one(Program program) {
  return {1, [program = std::move(program)](int64_t) { return program; }};
}

Lanes for_all_reduce(const Call& call, GroupRank me) {
  const Range whole{0, call.in.count};
  const int64_t bytes = call.in.bytes();
  if (bytes <= (me.n == 2 ? kDoublingBytesOfTwo : kDoublingBytes)) {
    return one(doubling_all_reduce(me, whole));
  }
  if (bytes <= (me.n == 2 ? kHalvingBytesOfTwo : kHalvingBytes)) {
    return one(halving_doubling_all_reduce(me, whole));
  }
  const int64_t lanes = num_pieces(bytes / me.n);
  return {lanes, [=](int64_t k) { return ring_all_reduce(me, whole, {k, lanes}); }};
}

}  // namespace

Lanes choose(const Call& call, GroupRank me) {
  const Range whole{0, call.in.count};
  const bool is_small = call.count() * size_of(call.dtype()) < kSmallBytes;
  const int64_t segments = num_pieces(call.in.bytes());
  const int64_t part = call.verb == Verb::kAllGather ? call.in.count : call.out.count;
  const int64_t lanes = num_pieces(part * size_of(call.dtype()));
  switch (call.verb) {
    case Verb::kAllReduce:
      return for_all_reduce(call, me);
    case Verb::kBroadcast:
      return one(is_small ? tree_broadcast(me, call.root, whole)
                          : chain_broadcast(me, call.root, whole, segments));
    case Verb::kReduce:
      return one(is_small ? tree_reduce(me, call.root, whole)
                          : chain_reduce(me, call.root, whole, segments));
    case Verb::kAllGather:
      if (is_small) return one(direct_all_gather(me, part));
      return {lanes, [=](int64_t k) { return ring_all_gather(me, part, {k, lanes}); }};
    case Verb::kReduceScatter:
      if (is_small) return one(direct_reduce_scatter(me, part));
      return {lanes, [=](int64_t k) { return ring_reduce_scatter(me, part, {k, lanes}); }};
    case Verb::kAllToAll:
      return one(pairwise_all_to_all(me, call.splits));
    case Verb::kBarrier:
      return one(dissemination_barrier(me));
    default:
      break;
  }
  KUAFU_CHECK(false, "no algorithm for ", describe(call));
  return {};
}

}  // namespace kuafu::algorithms
