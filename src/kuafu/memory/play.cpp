// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/play.h"

#include <map>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

/// One policy on its way through steps.
class Player {
 public:
  Player(const UseTrace& trace, int64_t budget, const Policy& policy, const Knobs& knobs)
      : trace_(trace),
        policy_(policy),
        rules_(trace, budget, nothing_held(trace)),
        known_{trace, rules_.uses(), rules_.held(), knobs, budget},
        is_ahead_(trace.chunks.size()) {}

  const Held& held() const { return rules_.held(); }

  /// Plays a step as number `step` of those in `out`.
  void step(int64_t step, Played& out) {
    for (int64_t t = 0; t < trace_.num_moments(); ++t) {
      number_ = step * trace_.num_moments() + t;
      known_.moment = t;
      const Choice choice = policy_(known_);
      for (const int64_t c : choice.evict) evict(c, out);
      for (const Use& use : trace_.moments[static_cast<size_t>(t)].uses) take(use, out);
      for (const int64_t c : choice.prefetch) fetch(c, out);
      out.live.push_back(rules_.compute());
    }
  }

 private:
  void move(int64_t chunk, MoveKind kind, Played& out) {
    out.moves.push_back(make_move(trace_, number_, chunk, kind));
    rules_.move(out.moves.back());
  }

  void check_chunk(int64_t chunk) const {
    KUAFU_REQUIRE(chunk >= 0 && chunk < trace_.num_chunks(), "a policy moves chunk ", chunk, " of ",
                  trace_.num_chunks(), " before moment ", known_.moment);
  }

  void evict(int64_t chunk, Played& out) {
    check_chunk(chunk);
    if (held().is_dirty(chunk) && !rules_.uses().is_dead(chunk, known_.moment)) {
      move(chunk, MoveKind::kWriteBack, out);
    }
    move(chunk, MoveKind::kDrop, out);
    is_ahead_[static_cast<size_t>(chunk)] = false;
  }

  /// What the moment uses is there, or comes now.
  void take(const Use& use, Played& out) {
    const auto c = static_cast<size_t>(use.chunk);
    if (!held().has(use.chunk)) {
      move(use.chunk, reads(use.access) ? MoveKind::kLoad : MoveKind::kMake, out);
    }
    if (is_ahead_[c]) ++out.prefetch_hits;
    is_ahead_[c] = false;
  }

  void fetch(int64_t chunk, Played& out) {
    check_chunk(chunk);
    move(chunk, MoveKind::kLoad, out);
    ++out.prefetches;
    is_ahead_[static_cast<size_t>(chunk)] = true;
  }

  const UseTrace& trace_;
  const Policy& policy_;
  Rules rules_;
  Known known_;
  int64_t number_ = 0;
  std::vector<bool> is_ahead_;  ///< loaded ahead, not used yet
};

void check_knobs(const Knobs& knobs) {
  KUAFU_REQUIRE(knobs.prefetch >= 0, "prefetch is ", knobs.prefetch, " moments; the least is 0");
  KUAFU_REQUIRE(knobs.static_share >= 0 && knobs.static_share <= 1, "static_share is ",
                knobs.static_share, "; allowed: 0 to 1");
  KUAFU_REQUIRE(knobs.margin >= 0 && knobs.margin < 1, "margin is ", knobs.margin,
                " of the budget; allowed: 0 to below 1");
}

}  // namespace

Played play(const UseTrace& trace, int64_t budget, const Policy& policy, const Knobs& knobs) {
  check(trace);
  check_fits(trace, budget);
  check_knobs(knobs);
  Player player(trace, budget, policy, knobs);
  std::map<Held, int64_t> seen;
  for (int64_t step = 0; seen.emplace(player.held(), step).second; ++step) {
    Played way_there;
    player.step(0, way_there);
  }
  Played out;
  out.steps = static_cast<int64_t>(seen.size()) - seen.at(player.held());
  out.start = player.held();
  // Once around uncounted: what was loaded ahead before the first of them is known then.
  for (int64_t step = 0; step < out.steps; ++step) {
    Played around;
    player.step(0, around);
  }
  for (int64_t step = 0; step < out.steps; ++step) player.step(step, out);
  KUAFU_REQUIRE(player.held() == out.start,
                "a policy chose differently of the same: it has a state of its own");
  out.traffic = traffic_of(trace, out.moves);
  const Replayed again = replay(trace, budget, out.start, out.moves, out.steps);
  KUAFU_CHECK(again.live == out.live && again.end == out.start, "moves played otherwise than made");
  return out;
}

}  // namespace kuafu::memory
