// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/thread_world.h"

#include <algorithm>
#include <thread>
#include <typeinfo>

namespace kuafu {

namespace {

// What is ready soon is not worth parking for: a core that goes idle is slow to come back. Ranks
// that share cores offer them to each other meanwhile. In turns a rank lingers longer, for nobody
// wants its core: a pipeline of 4 stages on 2 cores lost some 2 % of a step to parking after 100
// us.
constexpr int kSpins = 2000;  // some 50 us
constexpr auto kYielding = std::chrono::microseconds(100);
constexpr auto kYieldingInTurn = std::chrono::microseconds(10'000);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Rethrows `e` as its own type with the rank in front, if it is exactly an E.
template <class E>
void rethrow_labelled(const std::exception& e, int rank) {
  if (typeid(e) == typeid(E)) throw E(text("rank ", rank, ": ", e.what()));
}

}  // namespace

ThreadWorld::ThreadWorld(int ranks, const ThreadsOptions& options)
    : wait_states_(static_cast<size_t>(ranks)),
      streams_(static_cast<size_t>(ranks)),
      options_(options),
      turns_(ranks) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  num_workers_ = std::min(ranks, cores);
}

void ThreadWorld::linger(int rank, const Condition& condition) const {
  const auto is_over = [&] {
    return condition.is_ready() || failed_.load(std::memory_order_relaxed);
  };
  if (num_workers_ == size()) {
    for (int i = 0; i < kSpins && !is_over(); ++i) relax();
    return;
  }
  const auto end =
      std::chrono::steady_clock::now() + (turns_.takes_part(rank) ? kYieldingInTurn : kYielding);
  while (!is_over() && !turns_.is_wanted() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
}

void ThreadWorld::wait(int rank, const Condition& condition) {
  linger(rank, condition);
  if (condition.is_ready()) return;
  if (std::uncaught_exceptions() > 0) {
    fail(rank,
         std::make_exception_ptr(
             RankLost(text("an exception took rank ", rank, " out of ", condition.describe()))),
         Cause::kProvisional);
    throw_torn_down(rank);
  }
  WaitState& state = wait_states_[static_cast<size_t>(rank)];
  {
    std::lock_guard lock(state.mutex);
    state.waits_for = &condition;
  }
  state.is_parked.store(true);
  num_idle_.fetch_add(1);
  block(rank, condition);
  num_idle_.fetch_sub(1);
  state.is_parked.store(false);
  {
    std::lock_guard lock(state.mutex);
    state.waits_for = nullptr;
  }
  if (!condition.is_ready()) throw_torn_down(rank);
}

// Each turn reads the number of wakes before it looks at the state, so that no wake is missed.
void ThreadWorld::block(int rank, const Condition& condition) {
  WaitState& state = wait_states_[static_cast<size_t>(rank)];
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  const auto fail_with = [&](const char* why) {
    fail(rank, std::make_exception_ptr(RankLost(text(
                   "rank ", rank, " waits in ", condition.describe(), ": ", why, "\n", table()))));
  };
  bool is_late = false;
  while (true) {
    uint64_t seen = 0;
    {
      std::lock_guard lock(state.mutex);
      seen = state.num_wakes;
    }
    if (condition.is_ready() || has_failed()) return;
    if (is_lost(condition)) return fail_with("a rank it needs has returned");
    if (is_deadlocked()) return fail_with("every rank waits and none can go on");
    if (is_late) return fail_with(text("nothing for ", options_.timeout.count(), " ms").c_str());
    if (const auto heir = turns_.give_up(rank)) notify(*heir);
    is_late = !sleep(rank, deadline, [&] { return state.num_wakes != seen; });
  }
}

// Until `is_over`, which is asked under the rank's mutex, and until the rank has a core where it
// takes turns. False if that was not before the deadline.
bool ThreadWorld::sleep(int rank, std::chrono::steady_clock::time_point deadline,
                        const std::function<bool()>& is_over) {
  WaitState& state = wait_states_[static_cast<size_t>(rank)];
  const bool takes_turns = turns_.takes_part(rank);
  const auto may_run = [&] { return is_over() && turns_.ask(rank); };
  bool is_in_time = true;
  {
    std::unique_lock lock(state.mutex);
    if (!takes_turns) return state.wakeup.wait_until(lock, deadline, is_over);
    while (is_in_time && !state.wakeup.wait_for(lock, kPatience, may_run)) {
      if (is_over()) break;
      is_in_time = std::chrono::steady_clock::now() < deadline;
    }
  }
  turns_.overbook(rank);  // no more than that for whoever has a core
  turns_.run(rank);
  return is_in_time;
}

bool ThreadWorld::enter_turns(int rank) {
  if (turns_.takes_part(rank)) return false;
  turns_.enter(rank);
  sleep(rank, std::chrono::steady_clock::time_point::max(), [] { return true; });
  return true;
}

bool ThreadWorld::leave_turns(int rank) {
  if (!turns_.takes_part(rank)) return false;
  if (const auto heir = turns_.give_up(rank, true)) notify(*heir);
  return true;
}

void ThreadWorld::wake(int rank) {
  WaitState& state = wait_states_[static_cast<size_t>(rank)];
  if (!state.is_parked.load()) return;
  bool may_run = false;
  {
    std::lock_guard lock(state.mutex);
    ++state.num_wakes;
    may_run = turns_.ask(rank);
  }
  if (may_run) state.wakeup.notify_one();
}

// The lock: its thread either sleeps by then or has not looked yet.
void ThreadWorld::notify(int rank) {
  WaitState& state = wait_states_[static_cast<size_t>(rank)];
  { const std::lock_guard lock(state.mutex); }
  state.wakeup.notify_one();
}

bool ThreadWorld::wake_from(int rank, const Condition& condition) {
  WaitState& state = wait_states_[static_cast<size_t>(rank)];
  if (!state.is_parked.load()) return false;
  bool may_run = false;
  {
    std::lock_guard lock(state.mutex);
    if (state.waits_for != &condition) return false;
    ++state.num_wakes;
    may_run = turns_.ask(rank);
  }
  if (may_run) state.wakeup.notify_one();
  return true;
}

void ThreadWorld::note_call(int rank, const Call& call, int64_t sequence,
                            const std::string& group) {
  WaitState& state = wait_states_[static_cast<size_t>(rank)];
  progress_.fetch_add(1);
  std::lock_guard lock(state.mutex);
  state.last_call.call = call;
  state.last_call.sequence = sequence;
  state.last_call.group = group;
}

const device::DeviceStream& ThreadWorld::stream_of(int rank) {
  auto& stream = streams_[static_cast<size_t>(rank)];
  if (stream == nullptr) stream = std::make_unique<device::DeviceStream>();
  return *stream;
}

void ThreadWorld::finish(int rank) {
  wait_states_[static_cast<size_t>(rank)].is_finished.store(true);
  num_idle_.fetch_add(1);
  progress_.fetch_add(1);
  for (int other = 0; other < size(); ++other) wake(other);
}

bool ThreadWorld::is_lost(const Condition& condition) const {
  // A rank posts before it finishes: whoever is finished first and missing afterwards never comes.
  std::vector<int> finished;
  for (int r = 0; r < size(); ++r) {
    if (wait_states_[static_cast<size_t>(r)].is_finished.load()) finished.push_back(r);
  }
  if (finished.empty()) return false;
  const std::vector<int> missing = condition.missing();
  return std::any_of(missing.begin(), missing.end(), [&](int r) {
    return std::binary_search(finished.begin(), finished.end(), r);
  });
}

// All ranks parked on conditions that are not ready, and nothing happened while that was looked at.
bool ThreadWorld::is_deadlocked() const {
  if (num_idle_.load() < size()) return false;
  const uint64_t before = progress_.load();
  for (const WaitState& state : wait_states_) {
    if (state.is_finished.load()) continue;
    std::lock_guard lock(state.mutex);
    if (state.waits_for == nullptr || state.waits_for->is_ready()) return false;
  }
  return progress_.load() == before && num_idle_.load() == size();
}

void ThreadWorld::fail(int rank, std::exception_ptr cause, Cause kind) {
  {
    std::lock_guard lock(failure_mutex_);
    if (cause_ == nullptr || (cause_kind_ == Cause::kProvisional && rank == failed_rank_)) {
      cause_ = cause;
      cause_kind_ = kind;
      failed_rank_ = rank;
      try {
        std::rethrow_exception(cause);
      } catch (const std::exception& e) {
        cause_text_ = e.what();
      } catch (...) {
        cause_text_ = "an exception that is no std::exception";
      }
    }
  }
  failed_.store(true);
  for (int other = 0; other < size(); ++other) wake(other);
}

void ThreadWorld::throw_torn_down(int rank) const {
  std::lock_guard lock(failure_mutex_);
  if (failed_rank_ == rank) std::rethrow_exception(cause_);
  throw RankLost(
      text("rank ", rank, " was ended because of rank ", failed_rank_, ": ", cause_text_));
}

void ThreadWorld::rethrow_first() const {
  std::lock_guard lock(failure_mutex_);
  if (cause_ == nullptr) return;
  try {
    std::rethrow_exception(cause_);
  } catch (const std::exception& e) {
    rethrow_labelled<ConfigError>(e, failed_rank_);
    rethrow_labelled<Refused>(e, failed_rank_);
    rethrow_labelled<Unavailable>(e, failed_rank_);
    rethrow_labelled<InternalError>(e, failed_rank_);
    rethrow_labelled<Error>(e, failed_rank_);
    rethrow_labelled<std::runtime_error>(e, failed_rank_);
    rethrow_labelled<std::logic_error>(e, failed_rank_);
    rethrow_labelled<std::invalid_argument>(e, failed_rank_);
    rethrow_labelled<std::out_of_range>(e, failed_rank_);
    throw;
  }
}

std::string ThreadWorld::table() const {
  std::string lines;
  for (int r = 0; r < size(); ++r) {
    const WaitState& state = wait_states_[static_cast<size_t>(r)];
    std::lock_guard lock(state.mutex);
    lines += text("  rank ", r, ": ");
    if (state.is_finished.load()) {
      lines += "has returned";
    } else if (state.waits_for == nullptr) {
      lines += "is not in a call";
    } else {
      lines += "waits in " + state.waits_for->describe();
      const std::vector<int> missing = state.waits_for->missing();
      for (size_t i = 0; i < missing.size(); ++i) {
        lines += text(i == 0 ? " for rank " : ", ", missing[i]);
      }
    }
    const CallNote& last = state.last_call;
    if (last.sequence == CallNote::kNone) {
      lines += "; no call so far";
    } else {
      lines += text("; last call: ", kuafu::describe(last.call));
      if (last.sequence != CallNote::kMessage) lines += text(", call ", last.sequence);
      lines += text(" of group '", last.group, "'");
    }
    lines += "\n";
  }
  lines.pop_back();
  return lines;
}

}  // namespace kuafu
