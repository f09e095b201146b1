// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kuafu/device/clock.h"
#include "kuafu/device/device.h"

namespace kuafu::device {

/// Where a queue copies to, as seen from what computes.
enum class Direction { kToDevice, kToHost };
std::string to_string(Direction direction);

/// The `number`th copy of a queue. A queue copies in order, so a ticket stands for all before it;
/// number 0 is done from the beginning.
struct Ticket {
  Direction queue = Direction::kToDevice;
  int64_t number = 0;
  bool operator==(const Ticket&) const = default;
};
std::string to_string(const Ticket& ticket);

/// @pre the ranges do not overlap, and stay until the copy is done or its queues are gone.
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
  std::vector<Ticket> after = {};  ///< what must be done before it begins
};

/// What a queue did. Busy is the time in which a copy was under way, its throttle included, waits
/// for other copies not.
struct QueueStats {
  int64_t copies = 0, bytes = 0, busy_ns = 0;
  bool operator==(const QueueStats&) const = default;
};

/// Copies beside the computation of a rank, a queue for each direction. Used by the rank's own
/// thread. Destroying it cancels what has not begun and ends a copy under way at its next piece, so
/// that an exception ends quickly; who needs a copy waits for it. It goes before the memory does.
class CopyQueues {
 public:
  virtual ~CopyQueues() = default;

  /// Asks for a copy and comes back at once.
  virtual Ticket copy(Direction queue, const Copy& copy) = 0;

  /// Blocks until a copy is done; throws what it, or a copy that it came after, failed with.
  virtual void wait(const Ticket& ticket) = 0;

  /// Orders what the rank computes from now on behind a copy; where computing is not asynchronous
  /// that is wait().
  virtual void hold(const Ticket& ticket) = 0;

  virtual bool is_done(const Ticket& ticket) = 0;
  virtual QueueStats stats(Direction queue) = 0;
};

/// Told by a queue's thread what it is about to do: for traces, and for tests, which delay. What
/// `begins` throws is the copy's failure.
class CopyWatch {
 public:
  virtual ~CopyWatch() = default;
  virtual void waits(const Ticket& ticket, const Ticket& on) = 0;  ///< only where it is not done
  virtual void begins(const Ticket& ticket) = 0;
  virtual void ends(const Ticket& ticket) = 0;  ///< before anybody is told
};

struct CopyThreadsOptions {
  std::optional<double> to_device_gbs = {}, to_host_gbs = {};  ///< rates; none: as fast as it goes
  Clock* clock = nullptr;      ///< null: the machine's; outlives the queues
  CopyWatch* watch = nullptr;  ///< outlives the queues
};

/// Queues that are threads: memcpy in pieces of 1 MiB, each held back until its rate allows it. No
/// throttle sleeps on the caller's thread.
std::unique_ptr<CopyQueues> make_copy_threads(const CopyThreadsOptions& options);

/// Queues that are streams of the current device. A copy waits for what `compute` had been given
/// before it, and host memory should be pinned, or the caller waits. Throws Unavailable where there
/// is no device. @pre `compute` outlives the queues.
std::unique_ptr<CopyQueues> make_copy_streams(const DeviceStream& compute);

}  // namespace kuafu::device
