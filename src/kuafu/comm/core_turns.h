// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace kuafu {

/// Who of the ranks that take turns has a core of those they share; it keeps the books and places
/// threads, and its user puts them to sleep. A rank that blocks gives its core to the one that has
/// been ready for longest, which starts on that very core.
///
/// Left alone, Linux puts two ready ranks behind each other on one core and lets another idle until
/// it balances next, a tick or more later: a pipeline of 4 stages on 2 cores lost 6 % of a step to
/// it. A thread is placed only to wake up where another falls asleep, and may run anywhere
/// afterwards, so that little is lost where other programs want the cores too.
class CoreTurns {
 public:
  /// On the cores that the calling thread may use.
  explicit CoreTurns(int ranks);

  /// Those of the calling thread; 0 where the system does not tell (more than 1024 cores).
  int num_cores() const { return CPU_COUNT(&cores_); }

  /// The calling thread is `rank` and takes turns from now on; it has asked for a core.
  void enter(int rank);
  bool takes_part(int rank) const;
  /// Somebody waits for a core.
  bool is_wanted() const { return num_queued_.load(std::memory_order_relaxed) > 0; }

  /// A rank that goes on in its turn has a core afterwards, or stands in the queue. True where it
  /// may run now: it has one, or takes no turns. From any thread.
  bool ask(int rank);
  /// The rank's own thread runs: it is placed nowhere any more.
  void run(int rank);
  /// The rank goes on without a core of its own until it next blocks.
  void overbook(int rank);
  /// The rank blocks, or (`leaves`) takes no turns any more. Returns the rank that has its core now
  /// and is to be woken.
  std::optional<int> give_up(int rank, bool leaves = false);

 private:
  enum class State : uint8_t { kOutside, kBlocked, kQueued, kHasCore, kOverbooked };
  struct RankTurn {
    State state = State::kOutside;
    bool is_placed = false;
    pthread_t thread{};
  };

  RankTurn& turn_of(int rank) { return turns_[static_cast<size_t>(rank)]; }
  static void place(RankTurn& turn);
  void leave_queue(int rank);

  mutable std::mutex mutex_;
  cpu_set_t cores_;
  std::vector<RankTurn> turns_;  // guarded by mutex_, as below
  int num_free_ = 0;
  std::deque<int> queue_;
  std::atomic<int> num_queued_{0};
};

}  // namespace kuafu
