// SPDX-License-Identifier: Apache-2.0
#include "tests/standin/queue.h"

namespace kuafu::standin {

void Mark::reach() {
  const std::lock_guard lock(mutex_);
  is_reached_ = true;
  when_ = std::chrono::steady_clock::now();
  changed_.notify_all();
}

bool Mark::is_reached() const {
  const std::lock_guard lock(mutex_);
  return is_reached_;
}

void Mark::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return is_reached_; });
}

std::chrono::steady_clock::time_point Mark::when() const {
  const std::lock_guard lock(mutex_);
  return when_;
}

// One in four is long enough for others to overtake.
void Pauses::pause() {
  if (!is_on_) return;
  const auto draw = random_();
  if (draw % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % 200));
  if (draw % 4 == 1) std::this_thread::yield();
}

Queue::Queue(uint64_t seed) : pauses_(seed), thread_([this] { run(); }) {}

Queue::~Queue() {
  close();
  thread_.join();
}

void Queue::push(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

std::shared_ptr<Mark> Queue::mark() {
  auto mark = std::make_shared<Mark>();
  push([mark] { mark->reach(); });
  return mark;
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

bool Queue::has_ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

void Queue::run() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_closed_ || !tasks_.empty(); });
      if (tasks_.empty()) {
        has_ended_ = true;
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    pauses_.pause();
    task();
  }
}

}  // namespace kuafu::standin
