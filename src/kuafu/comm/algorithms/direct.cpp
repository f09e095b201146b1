// SPDX-License-Identifier: Apache-2.0
// Algorithms in which every byte goes straight from its owner to its user.

#include "kuafu/comm/algorithms/algorithms.h"

namespace kuafu::algorithms {

Program direct_all_gather(GroupRank me, int64_t part) {
  Program program;
  Round& round = program.rounds.emplace_back();
  const Range whole{0, part};
  for (int s = 1; s < me.n; ++s) {
    round.send(me.shifted(s), in(whole));
    round.receive(me.shifted(-s), out({me.shifted(-s) * part, part}));
  }
  round.copy(out({me.rank * part, part}), in(whole));
  return program;
}

Program direct_reduce_scatter(GroupRank me, int64_t part) {
  Program program;
  program.scratch = me.n * part;
  Round& round = program.rounds.emplace_back();
  const auto piece = [part](int rank) { return Range{rank * part, part}; };
  for (int s = 1; s < me.n; ++s) {
    const int to = me.shifted(s), from = me.shifted(-s);
    round.send(to, in(piece(to)));
    round.receive(from, scratch(piece(from)));
  }
  // In rank order; my own contribution may lie in `out`, so the sum grows in scratch.
  round.copy(scratch(piece(me.rank)), in(piece(me.rank)));
  for (int rank = 1; rank < me.n; ++rank) round.reduce(scratch(piece(0)), scratch(piece(rank)));
  round.copy(out({0, part}), scratch(piece(0)));
  return program;
}

Program pairwise_all_to_all(GroupRank me, const Splits& splits) {
  const auto offsets = [](const std::vector<int64_t>& counts) {
    std::vector<Range> ranges;
    int64_t at = 0;
    for (const int64_t count : counts) {
      ranges.push_back({at, count});
      at += count;
    }
    return ranges;
  };
  const std::vector<Range> sent = offsets(splits.send), received = offsets(splits.recv);
  const auto at = [](const std::vector<Range>& ranges, int rank) {
    return ranges[static_cast<size_t>(rank)];
  };
  Program program;
  program.rounds.emplace_back().copy(out(at(received, me.rank)), in(at(sent, me.rank)));
  for (int s = 1; s < me.n; ++s) {
    const int to = me.shifted(s), from = me.shifted(-s);
    Round& round = program.rounds.emplace_back();
    round.send(to, in(at(sent, to)));
    round.receive(from, out(at(received, from)));
  }
  return program;
}

}  // namespace kuafu::algorithms
