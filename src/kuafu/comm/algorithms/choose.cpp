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

Plan one(Program program) {
  return {1, [program = std::move(program)](int64_t) { return program; }};
}

Plan for_all_reduce(const Call& call, Seat seat) {
  const Range whole{0, call.in.count};
  const int64_t bytes = call.in.bytes();
  if (bytes <= (seat.n == 2 ? kDoublingBytesOfTwo : kDoublingBytes)) {
    return one(doubling_all_reduce(seat, whole));
  }
  if (bytes <= (seat.n == 2 ? kHalvingBytesOfTwo : kHalvingBytes)) {
    return one(halving_doubling_all_reduce(seat, whole));
  }
  const int64_t lanes = num_pieces(bytes / seat.n);
  return {lanes, [=](int64_t k) { return ring_all_reduce(seat, whole, {k, lanes}); }};
}

}  // namespace

Plan choose(const Call& call, Seat seat) {
  const Range whole{0, call.in.count};
  const bool is_small = call.count() * size_of(call.dtype()) < kSmallBytes;
  const int64_t segments = num_pieces(call.in.bytes());
  const int64_t part = call.verb == Verb::kAllGather ? call.in.count : call.out.count;
  const int64_t lanes = num_pieces(part * size_of(call.dtype()));
  switch (call.verb) {
    case Verb::kAllReduce:
      return for_all_reduce(call, seat);
    case Verb::kBroadcast:
      return one(is_small ? tree_broadcast(seat, call.root, whole)
                          : chain_broadcast(seat, call.root, whole, segments));
    case Verb::kReduce:
      return one(is_small ? tree_reduce(seat, call.root, whole)
                          : chain_reduce(seat, call.root, whole, segments));
    case Verb::kAllGather:
      if (is_small) return one(direct_all_gather(seat, part));
      return {lanes, [=](int64_t k) { return ring_all_gather(seat, part, {k, lanes}); }};
    case Verb::kReduceScatter:
      if (is_small) return one(direct_reduce_scatter(seat, part));
      return {lanes, [=](int64_t k) { return ring_reduce_scatter(seat, part, {k, lanes}); }};
    case Verb::kAllToAll:
      return one(pairwise_all_to_all(seat, call.splits));
    case Verb::kBarrier:
      return one(dissemination_barrier(seat));
    default:
      break;
  }
  KUAFU_CHECK(false, "no algorithm for ", describe(call));
  return {};
}

}  // namespace kuafu::algorithms
