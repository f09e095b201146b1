// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/comm/device_operation.h"
#include "kuafu/comm/thread_world.h"

namespace kuafu {

/// One collective, or one message from participant 0 to participant 1, under way between threads.
///
/// Every participant posts its call; once all have, the work is a list of tiles (a slice of the
/// result with everything it needs), and whoever waits takes the next tile, whatever rank it is: an
/// early rank does the work of a late one. Elements are combined in rank order by whoever does it.
/// On device memory the last rank to post starts all of it on a stream of its own (DeviceOperation).
class Operation {
 public:
  /// `participants` are world ranks. @pre the world outlives the operation.
  Operation(ThreadWorld& world, std::shared_ptr<const std::vector<int>> participants,
            std::string group, int64_t sequence);

  /// The call of one participant; true for the last one, which then must seal().
  /// @pre calls of one operation are posted under the group's lock.
  bool post(int index, const Call& call);
  bool has_posted(int index) const { return posted_[static_cast<size_t>(index)].load(); }
  /// Any call posted so far, with its participant; null before the first.
  const Call* first_call() const { return first_ < 0 ? nullptr : &call(first_); }
  int first_participant() const { return (*participants_)[static_cast<size_t>(first_)]; }
  const Call& call(int index) const { return calls_[static_cast<size_t>(index)]; }

  /// Lays out the tiles, does them at once where they are few, and wakes who waits. `world_rank`: the
  /// caller.
  void seal(int world_rank);
  /// Works until no tile is left, then waits for those that others still do. Throws as
  /// ThreadWorld::wait; nobody touches the caller's buffers afterwards.
  void complete(int world_rank);
  /// The same, and device memory has the result when it returns.
  void complete_on_host(int world_rank);
  bool is_done() const { return is_done_.load(); }
  /// True where nothing is left to wait for; on device memory the caller's stream is still to be
  /// ordered.
  bool is_over() const { return is_done() && device_ == nullptr; }
  bool is_on_device() const { return device_ != nullptr; }
  /// False while a participant has not posted; else completes what is left and is true. Throws
  /// where the world has failed.
  bool test(int world_rank);

  /// "call 5 of group 'data'"
  std::string position() const;
  /// Keeps the bytes of a message whose sender has gone on.
  void own_payload(std::vector<std::byte> payload) { payload_ = std::move(payload); }

 private:
  class AllPosted : public Condition {
   public:
    explicit AllPosted(const Operation& operation) : operation_(operation) {}
    bool is_ready() const override { return operation_.is_sealed_.load(); }
    std::vector<int> missing() const override;
    std::string describe() const override;

   private:
    const Operation& operation_;
  };
  class Done : public Condition {
   public:
    explicit Done(const Operation& operation) : operation_(operation) {}
    bool is_ready() const override { return operation_.is_done_.load(); }
    std::vector<int> missing() const override { return {}; }
    std::string describe() const override { return operation_.all_posted_.describe(); }

   private:
    const Operation& operation_;
  };
  struct Pointers {  // room for one tile's sources and targets
    std::vector<const void*> from;
    std::vector<void*> to;
  };

  void seal_on_device(const device::DeviceStream& stream);
  void lay_out();
  void work();
  void abandon();
  void run_tile(int64_t tile, Pointers& pointers) const;
  void combine_tile(int64_t segment, int64_t offset, int64_t length, Pointers& pointers) const;
  void copy_tile(int64_t segment, int64_t offset, int64_t length) const;
  int num_participants() const { return static_cast<int>(participants_->size()); }

  ThreadWorld& world_;
  const std::shared_ptr<const std::vector<int>> participants_;
  std::string group_;
  int64_t sequence_;
  std::vector<Call> calls_;
  std::vector<std::byte> payload_;
  std::unique_ptr<DeviceOperation> device_;  // null: all memory is the host's
  std::vector<std::atomic<bool>> posted_;
  int num_posted_ = 0;  // under the group's lock
  int first_ = -1;

  // Set by seal: `segments` slices of equal length, or (all_to_all) one a pair with its own.
  int64_t num_segments_ = 1;
  int64_t segment_count_ = 0;
  int64_t tile_count_ = 1;
  int64_t num_tiles_ = 0;
  std::vector<int64_t> first_tiles_;   // all_to_all: first tile of the pair i * n + j
  std::vector<int64_t> send_offsets_;  // all_to_all: of i's part for j in i's buffer
  std::vector<int64_t> recv_offsets_;  // all_to_all: of i's part in j's buffer

  std::atomic<bool> is_sealed_{false};
  std::atomic<bool> is_done_{false};
  std::atomic<bool> is_closed_{false};  // a participant left: no tile may start any more
  std::atomic<int> num_active_{0};      // threads inside work()
  alignas(64) std::atomic<int64_t> next_tile_{0};
  alignas(64) std::atomic<int64_t> num_done_{0};
  AllPosted all_posted_{*this};
  Done done_{*this};
};

}  // namespace kuafu
