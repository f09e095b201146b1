// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/mpi_world.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "kuafu/comm/mpi_group.h"

namespace kuafu {

namespace {

using std::chrono::milliseconds;

constexpr int kStatusTag = 1;
constexpr auto kSilence = milliseconds(1500);     // without a message through: told to rank 0
constexpr auto kStandstill = milliseconds(1500);  // all wait this long: nobody can go on
constexpr auto kGrace = milliseconds(2000);       // for the note that explains a wrong length
constexpr auto kTimeOut = std::chrono::minutes(5);
constexpr auto kHold = milliseconds(5);  // notes of calls that others may wait for
constexpr int64_t kTurnsBetweenLooks = 64;

}  // namespace

MpiWorld::MpiWorld(MpiCollectives collectives)
    : collectives_(collectives), channel_(MpiChannel::world()), last_change_(Clock::now()) {
  if (channel_->rank() == 0) statuses_.resize(static_cast<size_t>(channel_->size()));
}

MpiWorld::~MpiWorld() = default;

// What is already under way gets a turn; the new task gets its first one when it is waited for.
void MpiWorld::start(const std::shared_ptr<MpiTask>& task) {
  try {
    if (!tasks_.empty()) advance();
  } catch (const WrongLength& error) {
    grumble(error, *task);
  }
  tasks_.push_back(task);
}

void MpiWorld::advance() {
  for (size_t i = 0; i < tasks_.size();) {
    MpiTask& task = *tasks_[i];
    task.is_done = task.advance();
    if (task.is_done) {
      tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

int64_t MpiWorld::num_through() const {
  int64_t sum = 0;
  for (const auto& group : groups_) {
    sum += group->collectives().num_through() + group->messages().num_through();
  }
  return sum;
}

void MpiWorld::wait(MpiTask& task) {
  // While an exception unwinds this rank all ranks are about to end: nothing is waited for.
  if (task.is_done || std::uncaught_exceptions() > 0) return;
  Patience patience;
  try {
    while (!task.is_done) {
      advance();
      if (task.is_done) break;
      if (++patience.num_turns % kTurnsBetweenLooks == 0) look_after(patience, task);
    }
  } catch (const WrongLength& error) {
    grumble(error, task);
  }
  if (patience.is_told) tell(State::kBusy, "");
}

bool MpiWorld::test(MpiTask& task) {
  try {
    if (!task.is_done) advance();
  } catch (const WrongLength& error) {
    grumble(error, task);
  }
  return task.is_done;
}

void MpiWorld::look_after(Patience& patience, const MpiTask& task) {
  sched_yield();
  if (task.group() != nullptr) task.group()->listen();
  const auto now = Clock::now();
  if (now - patience.start > kHold) {
    for (const auto& group : groups_) group->flush();
  }
  if (patience.num_turns % (16 * kTurnsBetweenLooks) == 0 &&
      num_through() != patience.num_through) {
    patience.num_through = num_through();
    patience.start = now;
    if (patience.is_told) tell(State::kBusy, "");
    patience.is_told = false;
  }
  const auto waited = now - patience.start;
  if (waited < kSilence) return;
  if (!patience.is_told) {
    patience.is_told = true;
    tell(State::kWaiting, task.describe());
  }
  for (const auto& group : groups_) group->listen();
  hear();
  if (waited > kTimeOut) {
    throw RankLost(text("rank ", channel_->rank(), " has waited in ", task.describe(), " for ",
                        std::chrono::duration_cast<std::chrono::seconds>(waited).count(), " s"));
  }
}

// What this rank does now, to rank 0.
void MpiWorld::tell(State state, const std::string& what) {
  Status status;
  status.state = state;
  status.rank = channel_->rank();
  std::strncpy(status.what.data(), what.c_str(), status.what.size() - 1);
  if (channel_->rank() != 0) {
    channel_->send_note(std::as_bytes(std::span(&status, 1)), 0, kStatusTag);
  } else {
    statuses_[0] = status;
    last_change_ = Clock::now();
  }
}

void MpiWorld::hear() {
  if (channel_->rank() != 0) return;
  Status status;
  while (channel_->take_note(std::as_writable_bytes(std::span(&status, 1)), -1, kStatusTag)) {
    statuses_[static_cast<size_t>(status.rank)] = status;
    last_change_ = Clock::now();
  }
  judge();
}

// Only rank 0, and only from inside a wait or at the end.
void MpiWorld::judge() {
  const auto is = [](State state) {
    return [state](const Status& status) { return status.state == state; };
  };
  if (std::any_of(statuses_.begin(), statuses_.end(), is(State::kBusy))) return;
  if (std::none_of(statuses_.begin(), statuses_.end(), is(State::kWaiting))) return;
  if (Clock::now() - last_change_ < kStandstill) return;
  throw RankLost("every rank waits or has returned, and none can go on\n" + table());
}

std::string MpiWorld::table() const {
  std::string lines;
  for (size_t r = 0; r < statuses_.size(); ++r) {
    lines += text(r == 0 ? "" : "\n", "  rank ", r, ": ");
    if (statuses_[r].state == State::kReturned) lines += "has returned";
    if (statuses_[r].state == State::kWaiting) lines += text("waits in ", statuses_[r].what.data());
    if (statuses_[r].state == State::kBusy) lines += "computes";
  }
  return lines;
}

// A message of the wrong length is what a mismatched call looks like from far away. The neighbour's
// note says it better, if it comes.
void MpiWorld::grumble(const WrongLength& error, MpiTask& task) {
  const auto deadline = Clock::now() + kGrace;
  for (const auto& group : groups_) group->flush();
  while (Clock::now() < deadline) {
    for (const auto& group : groups_) group->listen();
    sched_yield();
  }
  throw CollectiveMismatch(text("rank ", channel_->rank(), " in ", task.describe(), ": ",
                                error.what(), "; the other rank called something else"));
}

void MpiWorld::finish() {
  tell(State::kReturned, "");
  const auto is_over = [](const std::shared_ptr<MpiGroup>& group) { return group->is_over(); };
  const auto listen = [this] {
    for (const auto& group : groups_) group->listen_for_end();
    hear();
    sched_yield();
    advance();
  };
  while (!std::all_of(groups_.begin(), groups_.end(), is_over)) listen();
  const std::vector<int> barrier = {channel_->start_barrier()};
  while (!channel_->test(barrier)) listen();
}

}  // namespace kuafu
