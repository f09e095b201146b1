// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace kuafu::standin {

/// A point in a stream.
class Mark {
 public:
  void reach();
  bool is_reached() const;
  void wait() const;
  /// @pre it is reached
  std::chrono::steady_clock::time_point when() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool is_reached_ = false;
  std::chrono::steady_clock::time_point when_;
};

/// Random pauses, or none where the seed is 0.
class Pauses {
 public:
  explicit Pauses(uint64_t seed) : is_on_(seed != 0), random_(seed) {}
  void pause();

 private:
  bool is_on_;
  std::minstd_rand random_;
};

/// What a stream is: tasks, done one after the other by a thread.
class Queue {
 public:
  explicit Queue(uint64_t seed);
  /// Blocks until all tasks are done.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  void push(std::function<void()> task);
  /// A point behind all tasks so far.
  std::shared_ptr<Mark> mark();
  /// The thread ends once all tasks are done.
  void close();
  bool has_ended() const;

 private:
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_closed_ = false;
  bool has_ended_ = false;
  Pauses pauses_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kuafu::standin
