// SPDX-License-Identifier: Apache-2.0
// Private to the disk tier: the thread behind a DiskFile.
#pragma once

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kuafu/device/disk.h"
#include "kuafu/device/disk_place.h"
#include "kuafu/device/token_bucket.h"

namespace kuafu::device {

inline int64_t up_to(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

class DiskFile::Worker {
 public:
  using Kind = DiskRequest::Kind;

  /// What a caller asked for.
  struct Task {
    Kind kind = Kind::kRead;
    int64_t chunk = 0;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    Ticket ticket = 0;
  };

  Worker(const DiskOptions& options, std::unique_ptr<DiskPlace> place,
         std::unique_ptr<DiskPort> port, std::string how);
  ~Worker();

  Ticket ask(Task task);
  void wait(Ticket ticket);
  bool is_done(Ticket ticket);
  DiskStats stats();
  int64_t alignment() const { return place_->alignment(); }
  const std::string& how() const { return how_; }

 private:
  /// What is known of a chunk, from its last write.
  struct DiskChunk {
    int64_t bytes = -1;  // -1: never written
    std::vector<uint64_t> sums;
    std::optional<DiskError::Fields> broken;  // why the write failed: nobody knows what is there
  };
  /// A task of which some pieces may be under way.
  struct Running {
    Task task;
    int64_t next = 0;  // first byte that was not submitted
    int in_flight = 0;
    std::exception_ptr failure;
    std::vector<uint64_t> sums;  // of what is written, by piece
    bool is_through() const { return in_flight == 0 && (failure || next == task.bytes); }
  };
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  /// A request under way; its id is its place in `pieces_`.
  struct DiskPiece {
    Running* of = nullptr;                         // null: this place is free
    int64_t begin = 0, bytes = 0, padded = 0;      // in the chunk; padded to the alignment
    int64_t done = 0;                              // of padded
    int tries = 0;                                 // in a row without progress
    std::byte* memory = nullptr;                   // the caller's or the bounce buffer
    std::unique_ptr<std::byte, Free> bounce = {};  // made when it is first needed
  };

  // All of these run on the worker's thread.
  void run();
  void loop();
  void start_tasks();
  std::exception_ptr refusal(const Task& task) const;
  void submit_pieces();
  void begin_piece(Running& running, uint64_t id);
  void submit(uint64_t id);
  void settle(const DiskCompletion& completion);
  void end_piece(uint64_t id);
  void fail(DiskPiece& piece, DiskError::Kind kind, const std::string& system);
  void publish();
  void publish(const Running& running);
  int64_t offset_of(int64_t chunk) const { return chunk * slot_bytes_; }

  const DiskOptions options_;
  const std::unique_ptr<DiskPlace> place_;
  const std::string how_;
  const int64_t slot_bytes_, piece_bytes_;
  SteadyClock own_clock_;
  Clock& clock_;

  // The thread's own.
  std::unique_ptr<DiskPort> port_;
  const std::shared_ptr<SharedLink> link_;
  std::vector<DiskChunk> chunks_;
  std::list<Running> running_;
  std::vector<DiskPiece> pieces_;
  int in_flight_ = 0;
  int64_t busy_since_ns_ = 0;
  DiskStats own_stats_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  Ticket issued_ = 0;
  std::set<Ticket> unfinished_;
  std::map<Ticket, std::exception_ptr> failures_;
  std::exception_ptr broken_;  // the worker itself: no task succeeds any more
  DiskStats stats_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace kuafu::device
