// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/algorithms/program.h"

namespace kuafu::algorithms {

/// One of `count` independent cuts through every part of a collective.
struct Lane {
  int64_t index = 0;
  int64_t count = 1;
};

// n ranks, B elements, p_i the i-th of n parts, L = ceil(log2 n), m the largest power of two <= n.
// Sums are taken in an order that depends on n alone. Reductions work in `out`, which holds the
// caller's contribution at the start, except reduce_scatter, which leaves `in` as it is.

/// Ring all-reduce: the parts travel around the ring and are added on the way, n - 1 rounds, then
/// the sums travel, n - 1 rounds.   received 2B - |p_r| - |p_{r+1}|, messages 2(n-1) a lane.
/// [Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009]
Program ring_all_reduce(GroupRank me, Range whole, Lane lane = {});
/// Its halves, in place: rank r ends with the sum of part r+1 in its place, and passes it on.
/// received B - |p_r|, then B - |p_{r+1}|
Program ring_sum_parts(GroupRank me, Range whole, Lane lane = {});
Program ring_share_parts(GroupRank me, Range whole, Lane lane = {});
/// The second half: part i of `out` comes from rank i's `in`.   received (n-1) B/n
Program ring_all_gather(GroupRank me, int64_t part, Lane lane = {});
/// The first half: rank r ends with the sum of all parts r.      received (n-1) B/n
Program ring_reduce_scatter(GroupRank me, int64_t part, Lane lane = {});

/// Binomial tree from the root: after round k, 2^k ranks hold the buffer.
/// received B, 0 at the root
Program tree_broadcast(GroupRank me, int root, Range whole);
/// The same tree upwards.   sent B, 0 at the root; received B a child
Program tree_reduce(GroupRank me, int root, Range whole);
/// tree_reduce to rank 0 and tree_broadcast from it.   messages of all ranks 2(n-1)
Program tree_all_reduce(GroupRank me, Range whole);

/// Recursive halving, then recursive doubling: partners exchange half of what they hold, log2 m
/// rounds each.   n = m: received 2(n-1)/n B, messages 2 log2 n. Surplus ranks hand their buffer to
/// a neighbour before and get the sum after. [Thakur, Rabenseifner and Gropp, Optimization of
/// collective communication in MPICH, 2005]
Program halving_doubling_all_reduce(GroupRank me, Range whole);
/// Recursive doubling: partners exchange everything.   n = m: received B log2 n, messages log2 n
Program doubling_all_reduce(GroupRank me, Range whole);

/// Chain root, root+1, ...: segment k arrives while segment k-1 is passed on.
/// received B, 0 at the root
Program chain_broadcast(GroupRank me, int root, Range whole, int64_t num_segments);
/// Chain root+1, root+2, ..., root, added on the way.   received B, 0 at root+1
Program chain_reduce(GroupRank me, int root, Range whole, int64_t num_segments);

/// Everybody sends its part to everybody in one round.   received (n-1) B/n, messages n-1
Program direct_all_gather(GroupRank me, int64_t part);
/// Everybody sends part i to rank i, which adds them in rank order.
/// received (n-1) B/n, messages n-1
Program direct_reduce_scatter(GroupRank me, int64_t part);
/// Round i exchanges with the ranks i places away.   received: all but one's own part
Program pairwise_all_to_all(GroupRank me, const Splits& splits);

/// Round k: an empty message to the rank 2^k further; after L rounds all have heard of all.
Program dissemination_barrier(GroupRank me);

/// The lanes a call is executed in: by verb, group size and bytes.
/// @pre the call is checked; n > 1; no send or recv.
Lanes choose(const Call& call, GroupRank me);

}  // namespace kuafu::algorithms
