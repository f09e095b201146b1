// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kuafu/comm/algorithms/program.h"

namespace kuafu::algorithms {

/// Point-to-point messages within a group: all that the algorithms need of a transport. Messages of
/// one sender, receiver and tag arrive in order.
class Wire {
 public:
  virtual ~Wire() = default;
  /// Starts a message and returns its handle. The memory stays untouched until it is through.
  virtual int send(const void* data, int64_t bytes, int to, int tag) = 0;
  virtual int receive(void* data, int64_t bytes, int from, int tag) = 0;
  /// True once all of these messages are through; the handles are then gone. Never blocks.
  virtual bool test(const std::vector<int>& handles) = 0;
};

/// A collective under way: its plan, and how far it has come.
class Execution {
 public:
  static constexpr int kLanesAtOnce = 2;

  /// Uses tags [tag, tag + kLanesAtOnce). Books what it sends and receives into `entry` (null:
  /// none), peers by `members`. @pre the buffers of `call`, wire, entry and members outlive it.
  Execution(const Call& call, Plan plan, Wire& wire, int tag, AxisLedger* entry,
            const std::vector<int>& members);

  /// Does whatever can be done without waiting; true once everything is done.
  bool advance();
  const Call& call() const { return call_; }

 private:
  struct Track {  // a lane under way
    int64_t lane = 0;
    int tag = 0;
    Program program;
    size_t next_round = 0;
    std::vector<int> messages;
    std::unique_ptr<std::byte[]> scratch;
    int64_t scratch_bytes = 0;
    bool is_done = false;
  };

  bool advance(Track& track);
  void start_lane(Track& track);
  void start_round(Track& track);
  void finish_round(Track& track);
  std::byte* at(const Track& track, const Span& span) const;
  void book_sent(int64_t bytes, int peer);
  void book_received(int64_t bytes, int peer);

  Call call_;
  Plan plan_;
  Wire& wire_;
  AxisLedger* entry_;
  const std::vector<int>& members_;
  int64_t element_;
  std::vector<Track> tracks_;
};

}  // namespace kuafu::algorithms
