// SPDX-License-Identifier: Apache-2.0
// Algorithms in which every byte goes straight from its owner to its user.

#include "kuafu/comm/algorithms/algorithms.h"

namespace kuafu::algorithms {

Program direct_all_gather(Seat seat, int64_t part) {
  Program program;
  Round& round = program.rounds.emplace_back();
  const Range whole{0, part};
  for (int s = 1; s < seat.n; ++s) {
    round.send(seat.shifted(s), in(whole));
    round.receive(seat.shifted(-s), out({seat.shifted(-s) * part, part}));
  }
  round.copy(out({seat.rank * part, part}), in(whole));
  return program;
}

Program direct_reduce_scatter(Seat seat, int64_t part) {
  Program program;
  program.scratch = seat.n * part;
  Round& round = program.rounds.emplace_back();
  const auto piece = [part](int rank) { return Range{rank * part, part}; };
  for (int s = 1; s < seat.n; ++s) {
    const int to = seat.shifted(s), from = seat.shifted(-s);
    round.send(to, in(piece(to)));
    round.receive(from, scratch(piece(from)));
  }
  // In rank order; my own contribution may lie in `out`, so the sum grows in scratch.
  round.copy(scratch(piece(seat.rank)), in(piece(seat.rank)));
  for (int rank = 1; rank < seat.n; ++rank) round.reduce(scratch(piece(0)), scratch(piece(rank)));
  round.copy(out({0, part}), scratch(piece(0)));
  return program;
}

Program pairwise_all_to_all(Seat seat, const Splits& splits) {
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
  program.rounds.emplace_back().copy(out(at(received, seat.rank)), in(at(sent, seat.rank)));
  for (int s = 1; s < seat.n; ++s) {
    const int to = seat.shifted(s), from = seat.shifted(-s);
    Round& round = program.rounds.emplace_back();
    round.send(to, in(at(sent, to)));
    round.receive(from, out(at(received, from)));
  }
  return program;
}

}  // namespace kuafu::algorithms
