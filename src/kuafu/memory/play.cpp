// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/play.h"

#include <map>

#include "kuafu/base/errors.h"
#include "kuafu/memory/player.h"

namespace kuafu::memory {
namespace {

/// Plays a step as number `step` of those in `out`.
void play_step(const UseTrace& trace, Player& player, int64_t step, Played& out) {
  for (int64_t t = 0; t < trace.num_moments(); ++t) {
    Player::Moment moment = player.next();
    for (Move& move : moment.moves) {
      move.moment += step * trace.num_moments();
      out.moves.push_back(move);
    }
    out.live.push_back(moment.live);
  }
}

/// Steps that repeat end as they began.
void require_same(const Player& player, const OnDevice& start) {
  KUAFU_REQUIRE(player.on_device() == start,
                "a policy chose differently of the same: it has a state of its own");
}

}  // namespace

Played play(const UseTrace& trace, int64_t budget, const Policy& policy, const Knobs& knobs) {
  check(trace);
  check_fits(trace, budget);
  Player player(trace, budget, policy, knobs);
  Played unread;
  std::map<OnDevice, int64_t> seen;
  for (int64_t step = 0; seen.emplace(player.on_device(), step).second; ++step) {
    play_step(trace, player, 0, unread);
  }
  Played out;
  out.steps = static_cast<int64_t>(seen.size()) - seen.at(player.on_device());
  out.start = player.on_device();
  // Once around uncounted: what was loaded ahead before the first of them is known then.
  for (int64_t step = 0; step < out.steps; ++step) play_step(trace, player, 0, unread);
  require_same(player, out.start);
  const int64_t prefetches = player.prefetches(), hits = player.prefetch_hits();
  for (int64_t step = 0; step < out.steps; ++step) play_step(trace, player, step, out);
  out.prefetches = player.prefetches() - prefetches;
  out.prefetch_hits = player.prefetch_hits() - hits;
  require_same(player, out.start);
  out.traffic = traffic_of(trace, out.moves);
  const ReplayedMoves again = replay(trace, budget, out.start, out.moves, out.steps);
  KUAFU_CHECK(again.live == out.live && again.end == out.start, "moves played otherwise than made");
  return out;
}

Played play(const UseTrace& trace, int64_t budget, const PolicyRule& rule, const Knobs& knobs) {
  check(trace);
  check_fits(trace, budget);
  return play(trace, budget, policy_of(rule, trace, budget), knobs);
}

}  // namespace kuafu::memory
