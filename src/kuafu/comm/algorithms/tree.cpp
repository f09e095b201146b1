// SPDX-License-Identifier: Apache-2.0
// Binomial trees. Picture (n = 8, root 0): 0 -> 4, then 0 -> 2, 4 -> 6, then 0 -> 1, 2 -> 3, 4 ->
// 5, 6 -> 7. Places are counted from the root: place v has its parent at v without its lowest set
// bit.

#include <algorithm>
#include <bit>
#include <iterator>

#include "kuafu/comm/algorithms/algorithms.h"

namespace kuafu::algorithms {

namespace {

struct TreePlace {
  int v;                      // counted from the root
  int parent;                 // rank, -1 at the root
  std::vector<int> children;  // ranks, the nearest first
};

TreePlace place_in_tree(GroupRank me, int root) {
  TreePlace place{(me.rank - root + me.n) % me.n, -1, {}};
  const auto rank_of = [&](int v) { return (v + root) % me.n; };
  if (place.v != 0) place.parent = rank_of(place.v & (place.v - 1));
  for (int bit = 1; bit < me.n && (place.v & bit) == 0; bit *= 2) {
    if (place.v + bit < me.n) place.children.push_back(rank_of(place.v + bit));
  }
  return place;
}

}  // namespace

Program tree_broadcast(GroupRank me, int root, Range whole) {
  const TreePlace place = place_in_tree(me, root);
  Program program;
  if (place.parent >= 0) program.rounds.emplace_back().receive(place.parent, out(whole));
  Round& down = program.rounds.emplace_back();
  for (auto child = place.children.rbegin(); child != place.children.rend(); ++child) {
    down.send(*child, out(whole));  // the largest subtree first
  }
  return program;
}

Program tree_reduce(GroupRank me, int root, Range whole) {
  const TreePlace place = place_in_tree(me, root);
  Program program;
  program.scratch = whole.count;
  for (const int child : place.children) {
    Round& up = program.rounds.emplace_back();
    up.receive(child, scratch({0, whole.count}));
    up.reduce(out(whole), scratch({0, whole.count}));
  }
  if (place.parent >= 0) program.rounds.emplace_back().send(place.parent, out(whole));
  return program;
}

// Way up: place v has received from its children v + 1, v + 2, v + 4, ... in rounds 0, 1, 2, ...,
// and sends to its parent in the round of its own lowest set bit, where the parent receives it. Way
// down, L rounds later: a place of d set bits receives in round L + d - 1 and sends in L + d.
Program tree_all_reduce(GroupRank me, Range whole) {
  Program program = tree_reduce(me, 0, whole), down = tree_broadcast(me, 0, whole);
  const auto v = static_cast<unsigned>(me.rank);
  const auto levels = static_cast<size_t>(std::bit_width(static_cast<unsigned>(me.n - 1)));
  const auto depth = static_cast<size_t>(std::popcount(v));
  std::vector<Round>& rounds = program.rounds;
  if (v > 0) {  // a place near the end lacks children
    rounds.insert(rounds.end() - 1, static_cast<size_t>(std::countr_zero(v)) + 1 - rounds.size(),
                  Round());
  }
  rounds.resize(levels + std::max<size_t>(depth, 1) - 1);
  std::move(down.rounds.begin(), down.rounds.end(), std::back_inserter(rounds));
  return program;
}

Program dissemination_barrier(GroupRank me) {
  Program program;
  for (int step = 1; step < me.n; step *= 2) {
    Round& round = program.rounds.emplace_back();
    round.sends.push_back({me.shifted(step), out({})});
    round.receives.push_back({me.shifted(-step), out({})});
  }
  return program;
}

}  // namespace kuafu::algorithms
