// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/player.h"

#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

void check_knobs(const Knobs& knobs) {
  KUAFU_REQUIRE(knobs.prefetch >= 0, "prefetch is ", knobs.prefetch, " moments; the least is 0");
  KUAFU_REQUIRE(knobs.static_share >= 0 && knobs.static_share <= 1, "static_share is ",
                knobs.static_share, "; allowed: 0 to 1");
  KUAFU_REQUIRE(knobs.margin >= 0 && knobs.margin < 1, "margin is ", knobs.margin,
                " of the budget; allowed: 0 to below 1");
}

}  // namespace

Player::Player(const UseTrace& trace, int64_t budget, const Policy& policy, const Knobs& knobs)
    : trace_(trace),
      policy_(policy),
      rules_(trace, budget, empty_device(trace)),
      known_{trace, rules_.uses(), rules_.on_device(), knobs, budget},
      is_ahead_(trace.chunks.size()) {
  check_knobs(knobs);
}

Player::Moment Player::next() {
  Moment out;
  known_.moment = rules_.moment();
  const Choice choice = policy_(known_);
  for (const int64_t c : choice.evict) evict(c, out);
  for (const ChunkUse& use : trace_.moments[static_cast<size_t>(known_.moment)].uses) {
    take(use, out);
  }
  for (const int64_t c : choice.prefetch) fetch(c, out);
  out.live = rules_.compute();
  return out;
}

void Player::move(int64_t chunk, MoveKind kind, Moment& out) {
  out.moves.push_back(make_move(trace_, known_.moment, chunk, kind));
  rules_.move(out.moves.back());
}

void Player::check_chunk(int64_t chunk) const {
  KUAFU_REQUIRE(chunk >= 0 && chunk < trace_.num_chunks(), "a policy moves chunk ", chunk, " of ",
                trace_.num_chunks(), " before moment ", known_.moment);
}

void Player::evict(int64_t chunk, Moment& out) {
  check_chunk(chunk);
  if (on_device().is_dirty(chunk) && !rules_.uses().is_dead(chunk, known_.moment)) {
    move(chunk, MoveKind::kWriteBack, out);
  }
  move(chunk, MoveKind::kDrop, out);
  is_ahead_[static_cast<size_t>(chunk)] = false;
}

/// What the moment uses on the device is there, or comes now.
void Player::take(const ChunkUse& use, Moment& out) {
  if (!needs_device(use.access)) return;
  const auto c = static_cast<size_t>(use.chunk);
  if (!on_device().has(use.chunk)) {
    move(use.chunk, reads(use.access) ? MoveKind::kLoad : MoveKind::kMake, out);
  }
  if (is_ahead_[c]) ++prefetch_hits_;
  is_ahead_[c] = false;
}

void Player::fetch(int64_t chunk, Moment& out) {
  check_chunk(chunk);
  move(chunk, MoveKind::kLoad, out);
  ++prefetches_;
  is_ahead_[static_cast<size_t>(chunk)] = true;
}

}  // namespace kuafu::memory
