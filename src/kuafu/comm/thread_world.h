// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kuafu/comm/call.h"
#include "kuafu/comm/core_turns.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/device/device.h"

namespace kuafu {

/// What a rank waits for. All members may be asked from any thread.
class Condition {
 public:
  virtual ~Condition() = default;
  /// Once true, it stays true.
  virtual bool is_ready() const = 0;
  /// World ranks whose call is awaited.
  virtual std::vector<int> missing() const = 0;
  /// "all_reduce(f32 x 8, sum), call 5 of group 'data'".
  virtual std::string describe() const = 0;
};

/// The last call a rank made, for the table of who waits where.
struct CallNote {
  Call call;
  static constexpr int64_t kMessage = -1, kNone = -2;
  int64_t sequence = kNone;  ///< position in its group, or kMessage for send and recv
  std::string group;
};

/// What the thread ranks of one run share: their waits, and the first error.
class ThreadWorld {
 public:
  ThreadWorld(int ranks, const ThreadsOptions& options);
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const { return static_cast<int>(wait_states_.size()); }
  /// Threads that can work at the same time.
  int num_workers() const { return num_workers_; }

  /// Blocks world rank `rank` until the condition is ready. Throws RankLost, with the table of who
  /// waits where, if nobody can make it ready, after the time-out, or once another rank has failed.
  /// While an exception unwinds the rank it does not block: the world fails with that exception.
  void wait(int rank, const Condition& condition);
  /// Makes a blocked rank look at its condition again; call it after every change of state.
  void wake(int rank);
  /// The same only if the rank is blocked on `condition`; true if it was.
  bool wake_from(int rank, const Condition& condition);
  /// A rank makes a call: feeds the deadlock detection and the table.
  void note_call(int rank, const Call& call, int64_t sequence, const std::string& group);
  /// Whether ranks outnumber the cores and may share them in turns.
  bool has_turns() const { return num_workers_ < size() && turns_.num_cores() > 0; }
  /// The calling rank, from now on, computes in turns with those it shares cores with: always with
  /// a core to itself, which it gives up where it blocks. Whoever has waited for a core for
  /// kPatience, perhaps for a rank that sleeps in its turn, goes on without. False where it was so.
  /// @pre has_turns()
  bool enter_turns(int rank);
  /// No longer. False where it was not.
  bool leave_turns(int rank);
  static constexpr auto kPatience = std::chrono::milliseconds(100);

  /// The stream on which world rank `rank` starts operations on device memory, its caller; made at
  /// the first call.
  const device::DeviceStream& stream_of(int rank);

  /// The rank's body returned.
  void finish(int rank);

  /// The first error wins; all waits end. A provisional one gives way to what the same rank throws.
  enum class Cause : uint8_t { kFinal, kProvisional };
  void fail(int rank, std::exception_ptr cause, Cause kind = Cause::kFinal);
  bool has_failed() const { return failed_.load(); }
  [[noreturn]] void throw_torn_down(int rank) const;
  /// Rethrows the first error, type kept, with the rank named where the type allows it.
  void rethrow_first() const;

  /// One line a rank: what it waits for, or that it computes or has returned, and its last call.
  std::string table() const;

 private:
  struct WaitState {
    mutable std::mutex mutex;
    std::condition_variable wakeup;
    const Condition* waits_for = nullptr;  // guarded by mutex
    uint64_t num_wakes = 0;                // guarded by mutex
    CallNote last_call;                    // guarded by mutex
    std::atomic<bool> is_parked{false};
    std::atomic<bool> is_finished{false};
  };

  void linger(int rank, const Condition& condition) const;
  bool is_lost(const Condition& condition) const;
  bool is_deadlocked() const;
  void block(int rank, const Condition& condition);
  bool sleep(int rank, std::chrono::steady_clock::time_point deadline,
             const std::function<bool()>& is_over);
  void notify(int rank);

  std::vector<WaitState> wait_states_;
  std::vector<std::unique_ptr<device::DeviceStream>> streams_;  // each touched by its rank alone
  ThreadsOptions options_;
  CoreTurns turns_;
  int num_workers_;
  std::atomic<uint64_t> progress_{0};
  std::atomic<int> num_idle_{0};  // parked or finished
  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  std::exception_ptr cause_;
  std::string cause_text_;
  int failed_rank_ = -1;
  Cause cause_kind_ = Cause::kFinal;
};

}  // namespace kuafu
