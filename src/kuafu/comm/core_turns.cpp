// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/core_turns.h"

#include <algorithm>

namespace kuafu {

CoreTurns::CoreTurns(int ranks) : turns_(static_cast<size_t>(ranks)) {
  CPU_ZERO(&cores_);
  sched_getaffinity(0, sizeof(cores_), &cores_);
  num_free_ = num_cores();
}

void CoreTurns::enter(int rank) {
  {
    const std::lock_guard lock(mutex_);
    turn_of(rank).thread = pthread_self();
    turn_of(rank).state = State::kBlocked;
  }
  ask(rank);
}

bool CoreTurns::takes_part(int rank) const {
  const std::lock_guard lock(mutex_);
  return turns_[static_cast<size_t>(rank)].state != State::kOutside;
}

bool CoreTurns::ask(int rank) {
  const std::lock_guard lock(mutex_);
  RankTurn& mine = turn_of(rank);
  if (mine.state != State::kBlocked) return mine.state != State::kQueued;
  if (num_free_ == 0) {
    mine.state = State::kQueued;
    queue_.push_back(rank);
    ++num_queued_;
    return false;
  }
  --num_free_;
  mine.state = State::kHasCore;
  return true;
}

void CoreTurns::run(int rank) {
  const std::lock_guard lock(mutex_);
  RankTurn& mine = turn_of(rank);
  if (!mine.is_placed) return;
  mine.is_placed = false;
  pthread_setaffinity_np(mine.thread, sizeof(cores_), &cores_);
}

void CoreTurns::overbook(int rank) {
  const std::lock_guard lock(mutex_);
  RankTurn& mine = turn_of(rank);
  if (mine.state != State::kBlocked && mine.state != State::kQueued) return;
  if (mine.state == State::kQueued) leave_queue(rank);
  mine.state = State::kOverbooked;
}

std::optional<int> CoreTurns::give_up(int rank, bool leaves) {
  const std::lock_guard lock(mutex_);
  RankTurn& mine = turn_of(rank);
  if (mine.state == State::kOutside) return std::nullopt;
  const bool had_core = mine.state == State::kHasCore;
  if (mine.state == State::kQueued) leave_queue(rank);
  mine.state = leaves ? State::kOutside : State::kBlocked;
  if (!had_core) return std::nullopt;
  if (queue_.empty()) {
    ++num_free_;
    return std::nullopt;
  }
  const int heir = queue_.front();
  leave_queue(heir);
  turn_of(heir).state = State::kHasCore;
  place(turn_of(heir));
  return heir;
}

void CoreTurns::leave_queue(int rank) {
  queue_.erase(std::find(queue_.begin(), queue_.end(), rank));
  --num_queued_;
}

// On the caller's core, which it is about to leave.
void CoreTurns::place(RankTurn& turn) {
  const int core = sched_getcpu();
  if (core < 0 || core >= CPU_SETSIZE) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  turn.is_placed = pthread_setaffinity_np(turn.thread, sizeof(one), &one) == 0;
}

}  // namespace kuafu
