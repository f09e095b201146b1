// SPDX-License-Identifier: Apache-2.0
// Pipelined chains. In round k the rank at place p of the chain receives segment k - p and passes
// on segment k - p - 1, so a long buffer keeps all links busy.

#include "kuafu/comm/algorithms/algorithms.h"

namespace kuafu::algorithms {

Program chain_broadcast(GroupRank me, int root, Range whole, int64_t num_segments) {
  const bool is_first = me.rank == root, is_last = me.next() == root;
  Program program;
  for (int64_t k = 0; k <= num_segments; ++k) {
    Round& round = program.rounds.emplace_back();
    if (k > 0 && !is_last) round.send(me.next(), out(whole.part(k - 1, num_segments)));
    if (k < num_segments && !is_first) {
      round.receive(me.prev(), out(whole.part(k, num_segments)));
    }
  }
  return program;
}

Program chain_reduce(GroupRank me, int root, Range whole, int64_t num_segments) {
  const bool is_first = me.prev() == root, is_last = me.rank == root;
  Program program;
  program.scratch = whole.part(0, num_segments).count;
  for (int64_t k = 0; k <= num_segments; ++k) {
    Round& round = program.rounds.emplace_back();
    if (k > 0 && !is_last) round.send(me.next(), out(whole.part(k - 1, num_segments)));
    if (k < num_segments && !is_first) {
      const Range arriving = whole.part(k, num_segments), room{0, arriving.count};
      round.receive(me.prev(), scratch(room));
      round.reduce(out(arriving), scratch(room));
    }
  }
  return program;
}

}  // namespace kuafu::algorithms
