// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/standin/queue.h"

namespace kuafu::standin {

/// The devices of this process, as the CUDA runtime sees them: one for the whole process, because
/// that is what its calls are about.
class Machine {
 public:
  static Machine& instance();
  ~Machine() { reset(); }

  void reset();
  void set_devices(int count);
  int num_devices() const;
  void set_pauses(uint64_t seed);
  void fail(const std::string& call, int n, int code);
  /// Called first by every call: a random pause, then the code that it is to fail with; 0: none.
  int enter(const char* call);

  std::shared_ptr<Queue> new_queue();
  /// The stream without a name of the calling thread's device.
  std::shared_ptr<Queue> null_queue();
  /// Lets go of a stream: its tasks are still done.
  void retire(std::shared_ptr<Queue> queue);
  /// What ends everything that is stuck; called by reset().
  void at_reset(std::function<void()> end);

  /// Memory of the calling thread's device, not poisoned yet; null where there is none left.
  void* take(size_t bytes);
  /// False where it is no memory of ours.
  bool is_ours(const void* memory) const;
  void poison(void* memory);
  /// Poisons it and keeps it for a while, so that a late read shows.
  void give_back(void* memory);
  int64_t bytes_in_use() const;
  static constexpr size_t kTotalBytes = size_t{16} << 30;

 private:
  struct Fault {
    int calls_to_go;
    int code;
  };
  Machine() = default;
  void forget_ended();
  uint64_t next_seed();

  mutable std::mutex mutex_;
  int devices_ = 1;
  uint64_t seed_ = 0;
  uint64_t num_seeds_ = 0;
  std::map<std::string, Fault> faults_;
  std::map<int, std::shared_ptr<Queue>> null_queues_;  // by device
  std::vector<std::shared_ptr<Queue>> retired_;
  std::vector<std::function<void()>> at_reset_;
  std::map<const void*, std::vector<std::byte>> taken_;
  std::deque<std::vector<std::byte>> given_back_;
  size_t bytes_taken_ = 0, bytes_given_back_ = 0;
};

/// The device of the calling thread.
int& current_device();

}  // namespace kuafu::standin
