// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/comm/call.h"

namespace kuafu {

/// What one rank puts on the wire and takes from it in one call.
struct WireTraffic {
  int64_t sent = 0;             ///< bytes
  int64_t received = 0;         ///< bytes
  int64_t messages = 0;         ///< sent and not empty
  std::vector<int> wire_peers;  ///< group indices bytes go to or come from, sorted

  bool operator==(const WireTraffic&) const = default;
};

/// The accounting convention: exact bytes of the textbook algorithm, empty messages not counted.
/// n ranks, B bytes of the call's argument (the whole for gathers and scatters), |p_i| bytes of
/// Buffer::part(i, n); "next" is rank + 1, "prev" rank - 1, modulo n.
///
///   verb            algorithm              received                 sent                messages
///   all_reduce      ring                   2B - |p_r| - |p_{r+1}|   2B - |p_{r+1}|      2(n-1)
///                                                                      - |p_{r+2}|
///   all_gather      ring                   (n-1)/n B                the same            n-1
///   reduce_scatter  ring                   (n-1)/n B                the same            n-1
///   broadcast       chain root, root+1...  B, 0 at the root         B, 0 at the last    1, 0
///   reduce          chain root+1, ...root  B, 0 at root+1           B, 0 at the root    1, 0
///   all_to_all      direct                 all but one's own part   the same            peers
///   send, recv      literal                B                        B                   1
///   barrier         -                      0                        0                   0
///
/// A group of one, and what a rank sends to itself, is no traffic.
/// @pre the call is checked.
WireTraffic convention(const Call& call, int n, int rank);

/// A kind of link: the time of a message of B bytes is latency + B / bandwidth.
struct Link {
  int64_t latency_ps = 1'000'000;  ///< picoseconds
  int64_t bytes_per_second = 10'000'000'000;

  bool operator==(const Link&) const = default;
};

/// Alpha-beta prices. Consecutive ranks share a node; a group that crosses nodes pays the slower
/// link for all of its traffic.
struct CostModel {
  Link intra_node;
  Link inter_node;
  int ranks_per_node = 8;

  const Link& link(int world_rank_a, int world_rank_b) const;
  const Link& link(const std::vector<int>& members) const;
};

/// Picoseconds of `bytes` over `link` without latency, rounded up.
int64_t transfer_ps(const Link& link, int64_t bytes);

/// Picoseconds from the moment the last of n ranks arrives to the end of the verb, alpha the
/// latency and beta the bytes a second of the link; B as for `convention`.
///
///   all_reduce                   2(n-1) (alpha + ceil(B/n) / beta)
///   all_gather, reduce_scatter    (n-1) (alpha + ceil(B/n) / beta)
///   all_to_all                    (n-1) (alpha + ceil(B/n) / beta)
///   broadcast, reduce             (n-1) alpha + B / beta, a pipelined chain
///   send, recv, send_recv         alpha + B / beta
///   barrier                       ceil(log2 n) alpha
/// Collectives of one rank are free.
int64_t price_ps(Verb verb, int64_t bytes, int n, const Link& link);

}  // namespace kuafu
