// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/thread_world.h"

#include <algorithm>
#include <thread>
#include <typeinfo>

namespace kuafu {

namespace {

constexpr int kSpins = 2000;  // some 50 us
constexpr auto kYielding = std::chrono::microseconds(100);

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
    : spots_(static_cast<size_t>(ranks)), options_(options) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  num_workers_ = std::min(ranks, cores);
}

// What is ready soon is not worth parking for. Ranks that share cores give them to each other
// meanwhile: a core that goes idle is slow to come back.
void ThreadWorld::linger(const Condition& condition) const {
  const auto is_over = [&] {
    return condition.is_ready() || failed_.load(std::memory_order_relaxed);
  };
  if (num_workers_ == size()) {
    for (int i = 0; i < kSpins && !is_over(); ++i) relax();
    return;
  }
  const auto deadline = std::chrono::steady_clock::now() + kYielding;
  while (!is_over() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
}

void ThreadWorld::wait(int rank, const Condition& condition) {
  linger(condition);
  if (condition.is_ready()) return;
  if (std::uncaught_exceptions() > 0) {
    fail(rank,
         std::make_exception_ptr(
             RankLost(text("an exception took rank ", rank, " out of ", condition.describe()))),
         Cause::kProvisional);
    throw_torn_down(rank);
  }
  Spot& spot = spots_[static_cast<size_t>(rank)];
  {
    std::lock_guard lock(spot.mutex);
    spot.waits_for = &condition;
  }
  spot.is_parked.store(true);
  num_idle_.fetch_add(1);
  block(rank, condition);
  num_idle_.fetch_sub(1);
  spot.is_parked.store(false);
  {
    std::lock_guard lock(spot.mutex);
    spot.waits_for = nullptr;
  }
  if (!condition.is_ready()) throw_torn_down(rank);
}

// Each turn reads the number of wakes before it looks at the state, so that no wake is missed.
void ThreadWorld::block(int rank, const Condition& condition) {
  Spot& spot = spots_[static_cast<size_t>(rank)];
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  const auto fail_with = [&](const char* why) {
    fail(rank, std::make_exception_ptr(RankLost(text(
                   "rank ", rank, " waits in ", condition.describe(), ": ", why, "\n", table()))));
  };
  bool is_late = false;
  while (true) {
    uint64_t seen = 0;
    {
      std::lock_guard lock(spot.mutex);
      seen = spot.num_wakes;
    }
    if (condition.is_ready() || has_failed()) return;
    if (is_lost(condition)) return fail_with("a rank it needs has returned");
    if (is_deadlocked()) return fail_with("every rank waits and none can go on");
    if (is_late) return fail_with(text("nothing for ", options_.timeout.count(), " ms").c_str());
    std::unique_lock lock(spot.mutex);
    is_late = !spot.wakeup.wait_until(lock, deadline, [&] { return spot.num_wakes != seen; });
  }
}

void ThreadWorld::wake(int rank) {
  Spot& spot = spots_[static_cast<size_t>(rank)];
  if (!spot.is_parked.load()) return;
  {
    std::lock_guard lock(spot.mutex);
    ++spot.num_wakes;
  }
  spot.wakeup.notify_one();
}

bool ThreadWorld::wake_from(int rank, const Condition& condition) {
  Spot& spot = spots_[static_cast<size_t>(rank)];
  if (!spot.is_parked.load()) return false;
  {
    std::lock_guard lock(spot.mutex);
    if (spot.waits_for != &condition) return false;
    ++spot.num_wakes;
  }
  spot.wakeup.notify_one();
  return true;
}

void ThreadWorld::note_call(int rank, const Call& call, int64_t sequence,
                            const std::string& group) {
  Spot& spot = spots_[static_cast<size_t>(rank)];
  progress_.fetch_add(1);
  std::lock_guard lock(spot.mutex);
  spot.last_call.call = call;
  spot.last_call.sequence = sequence;
  spot.last_call.group = group;
}

void ThreadWorld::finish(int rank) {
  spots_[static_cast<size_t>(rank)].is_finished.store(true);
  num_idle_.fetch_add(1);
  progress_.fetch_add(1);
  for (int other = 0; other < size(); ++other) wake(other);
}

bool ThreadWorld::is_lost(const Condition& condition) const {
  // A rank posts before it finishes: whoever is finished first and missing afterwards never comes.
  std::vector<int> finished;
  for (int r = 0; r < size(); ++r) {
    if (spots_[static_cast<size_t>(r)].is_finished.load()) finished.push_back(r);
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
  for (const Spot& spot : spots_) {
    if (spot.is_finished.load()) continue;
    std::lock_guard lock(spot.mutex);
    if (spot.waits_for == nullptr || spot.waits_for->is_ready()) return false;
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
    const Spot& spot = spots_[static_cast<size_t>(r)];
    std::lock_guard lock(spot.mutex);
    lines += text("  rank ", r, ": ");
    if (spot.is_finished.load()) {
      lines += "has returned";
    } else if (spot.waits_for == nullptr) {
      lines += "is not in a call";
    } else {
      lines += "waits in " + spot.waits_for->describe();
      const std::vector<int> missing = spot.waits_for->missing();
      for (size_t i = 0; i < missing.size(); ++i) {
        lines += text(i == 0 ? " for rank " : ", ", missing[i]);
      }
    }
    const CallNote& last = spot.last_call;
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
