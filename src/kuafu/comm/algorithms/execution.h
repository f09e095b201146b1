// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
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

/// Memory that collectives take turns to use: fresh memory would cost a page fault every 4 KiB.
class ScratchPool {
 public:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  struct Scratch {
    std::unique_ptr<std::byte[], Free> memory;
    int64_t bytes = 0;
  };
  /// At least `bytes`.
  Scratch take(int64_t bytes);
  void give_back(Scratch scratch);

 private:
  std::vector<Scratch> free_;
};

/// A collective under way: its lanes, and how far it has come.
class Execution {
 public:
  static constexpr int kLanesAtOnce = 2;

  /// What an execution uses and does not own.
  struct Setting {
    Wire& wire;
    ScratchPool& pool;
    const std::vector<int>& members;  ///< world ranks
    AxisLedger* entry = nullptr;      ///< of what is sent and received; null for none
  };

  /// Uses tags [tag, tag + kLanesAtOnce). @pre the setting and the buffers of `call` outlive it.
  Execution(const Call& call, Lanes lanes, const Setting& setting, int tag);
  ~Execution();
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  /// Does whatever can be done without waiting; true once everything is done.
  bool advance();
  const Call& call() const { return call_; }

 private:
  struct Track {  // a lane under way
    int64_t lane = 0;
    int tag = 0;
    Program program;
    size_t next_round = 0;
    std::vector<int> receives, sends;  // not through yet
    bool has_worked = false;           // the round's local work is done
    ScratchPool::Scratch scratch;
    bool is_done = false;
  };

  bool advance(Track& track);
  void start_lane(Track& track);
  void start_round(Track& track);
  bool are_through(std::vector<int>& messages);
  bool may_work_while_sending(const Track& track) const;
  void work(Track& track);
  std::byte* at(const Track& track, const BufferSlice& span) const;
  void book_sent(int64_t bytes, int peer);
  void book_received(int64_t bytes, int peer);

  Call call_;
  Lanes lanes_;
  Setting setting_;
  int64_t element_;
  std::vector<Track> tracks_;
};

}  // namespace kuafu::algorithms
