// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kuafu/device/device.h"

struct ncclComm;

namespace kuafu {

class NcclChannel;
class NcclComm;

/// What the NCCL communicators of one rank share: the lock around NCCL's calls, the first error,
/// and a thread that looks after what is under way. When NCCL reports an error, or something takes
/// longer than the time-out, that thread aborts the rank's communicators: streams go on, and every
/// later call and wait throws RankLost with the reason.
class NcclWorld {
 public:
  NcclWorld(int rank, int device, std::chrono::milliseconds timeout);
  ~NcclWorld();
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;

  int rank() const { return rank_; }
  /// `what` is under way until `end` is reached.
  void watch(std::string what, std::shared_ptr<const device::Event> end);
  /// Throws RankLost where the world has failed.
  void check() const;
  /// Blocks the host until `is_over`; messages are moved on meanwhile. Throws RankLost after the
  /// time-out, or where the world has failed.
  void wait(const std::function<std::string()>& what, const std::function<bool()>& is_over);

  /// Moves on the channels whose messages have not begun.
  void advance();
  /// Until all its messages have begun. @pre the channel outlives that
  void add_waiting(NcclChannel& channel);
  void remove_waiting(NcclChannel& channel);
  bool has_waiting() const { return !waiting_.empty(); }

 private:
  friend class NcclComm;
  struct UnderWay {
    std::string what;
    std::shared_ptr<const device::Event> end;
    std::chrono::steady_clock::time_point since;
  };

  void look_after();
  void look();
  void fail(const std::string& why);  // with the lock

  const int rank_;
  const int device_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;  // NCCL's calls, and all that follows
  std::condition_variable stops_;
  bool is_over_ = false;
  std::list<UnderWay> under_way_;
  std::vector<NcclComm*> comms_;
  std::string why_;
  std::atomic<bool> has_failed_{false};
  std::vector<NcclChannel*> waiting_;  // of the rank's own thread
  std::thread watcher_;                // last: it uses the others
};

/// A communicator of NCCL whose calls return before they are through, for work on one stream.
class NcclComm {
 public:
  /// Called with the communicator; returns an ncclResult_t.
  using NcclCall = std::function<int(ncclComm*)>;

  /// @pre the stream outlives it
  NcclComm(std::shared_ptr<NcclWorld> world, ncclComm* comm, const device::DeviceStream& stream);
  /// Waits for the stream first; where an exception unwinds it cuts it off, for the others may
  /// never come.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Throws Error where it fails, RankLost where the world has. @pre is_settled()
  void call(const char* name, const NcclCall& call);
  /// False while the last call is in progress: the stream has it only afterwards.
  bool is_settled();
  void settle(const std::function<std::string()>& what);

 private:
  friend class NcclWorld;
  int state() const;  // with the lock
  void drain();

  std::shared_ptr<NcclWorld> world_;
  const device::DeviceStream& stream_;
  ncclComm* comm_;  // null once aborted
};

}  // namespace kuafu
