// SPDX-License-Identifier: Apache-2.0
// Ring algorithms. Picture (n = 4, what rank 1 does in ring_all_reduce, part numbers):
//
//   round    0  1  2 | 3  4  5
//   sends    1  0  3 | 2  1  0      to rank 2
//   receives 0  3  2 | 1  0  3      from rank 0; added in the first half, final in the second
//
// After round n-2 rank r holds the whole sum of part r+1.

#include "kuafu/comm/algorithms/algorithms.h"

namespace kuafu::algorithms {

Program ring_sum_parts(GroupRank me, Range whole, Lane lane) {
  Program program;
  const auto piece = [&](int shift) {
    return whole.part(me.shifted(shift), me.n).part(lane.index, lane.count);
  };
  program.scratch = whole.part(0, me.n).part(0, lane.count).count;
  for (int s = 0; s < me.n - 1; ++s) {
    Round& round = program.rounds.emplace_back();
    const Range arriving = piece(-s - 1), room{0, arriving.count};
    round.send(me.next(), out(piece(-s)));
    round.receive(me.prev(), scratch(room));
    round.reduce(out(arriving), scratch(room));
  }
  return program;
}

Program ring_share_parts(GroupRank me, Range whole, Lane lane) {
  Program program;
  const auto piece = [&](int shift) {
    return whole.part(me.shifted(shift), me.n).part(lane.index, lane.count);
  };
  for (int s = 0; s < me.n - 1; ++s) {
    Round& round = program.rounds.emplace_back();
    round.send(me.next(), out(piece(1 - s)));
    round.receive(me.prev(), out(piece(-s)));
  }
  return program;
}

Program ring_all_reduce(GroupRank me, Range whole, Lane lane) {
  Program program = ring_sum_parts(me, whole, lane);
  for (Round& round : ring_share_parts(me, whole, lane).rounds) {
    program.rounds.push_back(std::move(round));
  }
  return program;
}

Program ring_all_gather(GroupRank me, int64_t part, Lane lane) {
  Program program;
  const auto piece = [&](int shift) {
    return Range{me.shifted(shift) * part, part}.part(lane.index, lane.count);
  };
  program.rounds.emplace_back().copy(out(piece(0)),
                                     in(Range{0, part}.part(lane.index, lane.count)));
  for (int s = 0; s < me.n - 1; ++s) {
    Round& round = program.rounds.emplace_back();
    round.send(me.next(), out(piece(-s)));
    round.receive(me.prev(), out(piece(-s - 1)));
  }
  return program;
}

// The partial sum of part r-1-s leaves while that of part r-2-s arrives, in alternating scratch;
// what arrives last, part r, is added to my own.
Program ring_reduce_scatter(GroupRank me, int64_t part, Lane lane) {
  Program program;
  const auto piece = [&](int shift) {
    return Range{me.shifted(shift) * part, part}.part(lane.index, lane.count);
  };
  const int64_t room = Range{0, part}.part(0, lane.count).count;
  program.scratch = 2 * room;
  const auto partial = [&](int s) { return scratch({s % 2 * room, piece(-2 - s).count}); };
  for (int s = 0; s < me.n - 1; ++s) {
    Round& round = program.rounds.emplace_back();
    round.send(me.next(), s == 0 ? in(piece(-1)) : partial(s - 1));
    round.receive(me.prev(), partial(s));
    if (s < me.n - 2) {
      round.reduce(partial(s), in(piece(-2 - s)));
    } else {
      const BufferSlice mine = out(Range{0, part}.part(lane.index, lane.count));
      round.copy(mine, in(piece(0)));
      round.reduce(mine, partial(s));
    }
  }
  return program;
}

}  // namespace kuafu::algorithms
