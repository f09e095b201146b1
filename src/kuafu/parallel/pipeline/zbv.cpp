// SPDX-License-Identifier: Apache-2.0
//
// ZB-V: weight gradients fill the bubbles of a pipeline bent into a V.   [Qi et al., 2401.10241]
//
// Picture (p = 4). Stage i and stage 7-i live on rank i: the last rank hands over to itself, and
// the loss is computed where the tokens are.
//
//   rank 0   stage 0 \        / stage 7
//   rank 1    stage 1 \      / stage 6          the input gradient I is what other ranks wait for,
//   rank 2     stage 2 \    / stage 5           the weight gradient W can wait: it is taken where a
//   rank 3      stage 3 \__/ stage 4            rank would idle or holds as much as it may
//
// Grown tick by tick, F, I and W of one unit each: every rank takes the first of I, F, W that is
// ready and allowed, the later stage first. A stage input is alive from F to W; 2p halves may be,
// the bytes of 1F1B, the last slot kept for the second stage so that what is under way can end.

#include <algorithm>
#include <array>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/pipeline/schedules.h"

namespace kuafu::pipeline {
namespace {

constexpr int kNever = 1 << 30;

/// A rank-by-rank greedy with unit durations.
class Grower {
 public:
  /// `stages_of[r]`: the stages of rank r, first to last. `limit`: alive stage inputs a rank.
  Grower(std::vector<std::vector<int>> stages_of, int micro_batches, int limit)
      : stages_of_(std::move(stages_of)), micro_batches_(micro_batches), limit_(limit) {
    for (const auto& mine : stages_of_) num_stages_ += static_cast<int>(mine.size());
    for (auto& done : done_) {
      done.assign(static_cast<size_t>(num_stages_ * micro_batches), kNever);
    }
    next_.resize(static_cast<size_t>(num_stages_), {0, 0, 0});
  }

  Timetable grow() {
    Timetable t(stages_of_.size());
    const int wanted = 3 * num_stages_ * micro_batches_;
    for (int tick = 0, taken = 0; taken < wanted; ++tick) {
      KUAFU_CHECK(tick < 4 * wanted, "the schedule does not end");
      Row chosen;
      for (size_t r = 0; r < stages_of_.size(); ++r) {
        if (const Action a = choose(stages_of_[r], tick); a.stage >= 0) {
          t[r].push_back(a);
          chosen.push_back(a);
        }
      }
      for (const Action& a : chosen) {
        end_of(a) = tick + 1;
        ++next_[static_cast<size_t>(a.stage)][index(a.op)];
      }
      taken += static_cast<int>(chosen.size());
    }
    return t;
  }

 private:
  static size_t index(Op op) { return op == Op::kForward ? 0 : op == Op::kInputGrad ? 1 : 2; }

  int& end_of(const Action& a) {
    return done_[index(a.op)][static_cast<size_t>(a.stage * micro_batches_ + a.micro_batch)];
  }

  bool is_ready(const Action& a, int tick) {
    if (a.micro_batch >= micro_batches_) return false;
    switch (a.op) {
      case Op::kForward:
        return a.stage == 0 || end_of({Op::kForward, a.stage - 1, a.micro_batch}) <= tick;
      case Op::kInputGrad: {
        const bool is_last = a.stage == num_stages_ - 1;
        const Action before = is_last ? Action{Op::kForward, a.stage, a.micro_batch}
                                      : Action{Op::kInputGrad, a.stage + 1, a.micro_batch};
        return end_of(before) <= tick;
      }
      default:
        return end_of({Op::kInputGrad, a.stage, a.micro_batch}) <= tick;
    }
  }

  Action choose(const std::vector<int>& mine, int tick) {
    int alive = 0;
    for (const int s : mine) {
      const auto& n = next_[static_cast<size_t>(s)];
      alive += n[0] - n[2];
    }
    for (const Op op : {Op::kInputGrad, Op::kForward, Op::kWeightGrad}) {
      for (size_t i = mine.size(); i-- > 0;) {  // the later stage is nearer to the loss
        const Action a{op, mine[i], next_[static_cast<size_t>(mine[i])][index(op)]};
        const int room = limit_ - static_cast<int>(mine.size() - 1 - i);
        if (op == Op::kForward && alive >= room) continue;
        if (is_ready(a, tick)) return a;
      }
    }
    return {Op::kForward, -1, -1};
  }

  std::vector<std::vector<int>> stages_of_;
  int micro_batches_, limit_, num_stages_ = 0;
  std::array<std::vector<int>, 3> done_;  // end of F, I, W by stage and micro-batch
  std::vector<std::array<int, 3>> next_;  // next micro-batch of F, I, W by stage
};

}  // namespace

Timetable zbv(PipeShape s) {
  KUAFU_REQUIRE(s.ranks > 0 && s.micro_batches > 0, "a pipeline of ", s.ranks, " ranks and ",
                s.micro_batches, " micro-batches; both must be positive");
  if (s.chunks != 2) {
    throw Refused(text("schedule \"zbv\" has 2 stages a rank, given chunks = ", s.chunks,
                       "; nearest: chunks = 2"));
  }
  std::vector<std::vector<int>> stages;
  for (int r = 0; r < s.ranks; ++r) stages.push_back({r, 2 * s.ranks - 1 - r});
  return Grower(stages, s.micro_batches, 2 * s.ranks).grow();
}

}  // namespace kuafu::pipeline
