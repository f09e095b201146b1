// SPDX-License-Identifier: Apache-2.0
// All-reduce between partners whose numbers differ in one bit.
//
// m is the largest power of two <= n. The first 2(n-m) ranks form pairs: the even one hands its
// buffer to the odd one, which takes part for both and hands the sum back. The m ranks that take
// part ("members") are numbered 0 to m-1.
//
// Picture (m = 4, eighths of the buffer that member 1 holds):
//   halving   0..7 -> exchanges 4..7 with member 3, keeps 0..3 -> exchanges 0..1 with 0, keeps 2..3
//   doubling  2..3 -> gets 0..1 from 0 -> gets 4..7 from 3

#include <bit>

#include "kuafu/comm/algorithms/algorithms.h"

namespace kuafu::algorithms {

namespace {

struct Fold {
  int m;        // members
  int surplus;  // n - m
  int member;   // my number, -1 if a neighbour takes part for me

  explicit Fold(GroupRank me) : m(static_cast<int>(std::bit_floor(static_cast<unsigned>(me.n)))) {
    surplus = me.n - m;
    if (me.rank >= 2 * surplus) {
      member = me.rank - surplus;
    } else {
      member = me.rank % 2 == 1 ? me.rank / 2 : -1;
    }
  }
  int rank_of(int number) const { return number < surplus ? 2 * number + 1 : number + surplus; }
};

// What a rank without a number does: everything, in two rounds.
Program hand_over(GroupRank me, Range whole) {
  Program program;
  program.rounds.emplace_back().send(me.rank + 1, out(whole));
  program.rounds.emplace_back().receive(me.rank + 1, out(whole));
  return program;
}

void take_over(Program& program, GroupRank me, const Fold& fold, Range whole) {
  if (me.rank >= 2 * fold.surplus) return;
  Round& round = program.rounds.emplace_back();
  round.receive(me.rank - 1, scratch({0, whole.count}));
  round.reduce(out(whole), scratch({0, whole.count}));
}

void hand_back(Program& program, GroupRank me, const Fold& fold, Range whole) {
  if (me.rank < 2 * fold.surplus) program.rounds.emplace_back().send(me.rank - 1, out(whole));
}

// Parts [first, first + num) of m.
Range parts(Range whole, int m, int first, int num) {
  const Range head = whole.part(first, m), tail = whole.part(first + num - 1, m);
  return {head.offset, tail.offset + tail.count - head.offset};
}

}  // namespace

Program halving_doubling_all_reduce(GroupRank me, Range whole) {
  const Fold fold(me);
  if (fold.member < 0) return hand_over(me, whole);
  Program program;
  program.scratch =
      me.rank < 2 * fold.surplus ? whole.count : parts(whole, fold.m, 0, fold.m / 2).count;
  take_over(program, me, fold, whole);
  for (int half = fold.m / 2; half >= 1; half /= 2) {  // I hold 2 * half parts from `first`
    const int first = fold.member / (2 * half) * (2 * half);
    const bool is_upper = (fold.member & half) != 0;
    const Range keep = parts(whole, fold.m, is_upper ? first + half : first, half);
    const Range give = parts(whole, fold.m, is_upper ? first : first + half, half);
    const int partner = fold.rank_of(fold.member ^ half);
    Round& round = program.rounds.emplace_back();
    round.send(partner, out(give));
    round.receive(partner, scratch({0, keep.count}));
    round.reduce(out(keep), scratch({0, keep.count}));
  }
  for (int half = 1; half < fold.m; half *= 2) {  // I hold `half` parts
    const int mine = fold.member / half * half, theirs = mine ^ half;
    const int partner = fold.rank_of(fold.member ^ half);
    Round& round = program.rounds.emplace_back();
    round.send(partner, out(parts(whole, fold.m, mine, half)));
    round.receive(partner, out(parts(whole, fold.m, theirs, half)));
  }
  hand_back(program, me, fold, whole);
  return program;
}

Program doubling_all_reduce(GroupRank me, Range whole) {
  const Fold fold(me);
  if (fold.member < 0) return hand_over(me, whole);
  Program program;
  program.scratch = whole.count;
  take_over(program, me, fold, whole);
  for (int bit = 1; bit < fold.m; bit *= 2) {
    const int partner = fold.rank_of(fold.member ^ bit);
    Round& round = program.rounds.emplace_back();
    round.send(partner, out(whole));
    round.receive(partner, scratch({0, whole.count}));
    round.reduce(out(whole), scratch({0, whole.count}));
  }
  hand_back(program, me, fold, whole);
  return program;
}

}  // namespace kuafu::algorithms
