// SPDX-License-Identifier: Apache-2.0
#include "tests/standin/machine.h"

#include <algorithm>
#include <cstring>

#include "tests/standin/control.h"

namespace kuafu::standin {

namespace {

constexpr int kPoison = 0xFF;                             // not a number, in every float type
constexpr size_t kMostBytesGivenBack = size_t{64} << 20;  // kept poisoned

}  // namespace

int& current_device() {
  thread_local int device = 0;
  return device;
}

Machine& Machine::instance() {
  static Machine machine;
  return machine;
}

void Machine::reset() {
  std::vector<std::function<void()>> ends;
  std::vector<std::shared_ptr<Queue>> queues;
  {
    const std::lock_guard lock(mutex_);
    ends.swap(at_reset_);
    queues.swap(retired_);
    for (const auto& [device, queue] : null_queues_) queues.push_back(queue);
    null_queues_.clear();
    faults_.clear();
    devices_ = 1;
    seed_ = 0;
  }
  for (const auto& end : ends) end();
  queues.clear();  // joins them
  const std::lock_guard lock(mutex_);
  given_back_.clear();
  bytes_given_back_ = 0;
}

void Machine::set_devices(int count) {
  const std::lock_guard lock(mutex_);
  devices_ = count;
}

int Machine::num_devices() const {
  const std::lock_guard lock(mutex_);
  return devices_;
}

void Machine::set_pauses(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  seed_ = seed;
}

void Machine::fail(const std::string& call, int n, int code) {
  const std::lock_guard lock(mutex_);
  faults_[call] = {n, code};
}

int Machine::enter(const char* call) {
  uint64_t seed = 0;
  int code = 0;
  {
    const std::lock_guard lock(mutex_);
    seed = next_seed();
    const auto found = faults_.find(call);
    if (found != faults_.end() && --found->second.calls_to_go == 0) {
      code = found->second.code;
      faults_.erase(found);
    }
  }
  Pauses(seed).pause();
  return code;
}

uint64_t Machine::next_seed() { return seed_ == 0 ? 0 : seed_ * 1'000'003 + ++num_seeds_; }

std::shared_ptr<Queue> Machine::new_queue() {
  forget_ended();
  const std::lock_guard lock(mutex_);
  return std::make_shared<Queue>(next_seed());
}

std::shared_ptr<Queue> Machine::null_queue() {
  const std::lock_guard lock(mutex_);
  auto& queue = null_queues_[current_device()];
  if (queue == nullptr) queue = std::make_shared<Queue>(next_seed());
  return queue;
}

void Machine::retire(std::shared_ptr<Queue> queue) {
  queue->close();
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(queue));
}

void Machine::forget_ended() {
  std::vector<std::shared_ptr<Queue>> ended;
  const std::lock_guard lock(mutex_);
  const auto split = std::partition(retired_.begin(), retired_.end(),
                                    [](const auto& queue) { return !queue->has_ended(); });
  ended.assign(split, retired_.end());
  retired_.erase(split, retired_.end());
}

void Machine::at_reset(std::function<void()> end) {
  const std::lock_guard lock(mutex_);
  at_reset_.push_back(std::move(end));
}

void* Machine::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > kTotalBytes - bytes_taken_) return nullptr;
  std::vector<std::byte> memory(bytes);
  void* const data = memory.data();
  taken_[data] = std::move(memory);
  bytes_taken_ += bytes;
  return data;
}

bool Machine::is_ours(const void* memory) const {
  const std::lock_guard lock(mutex_);
  return taken_.contains(memory);
}

void Machine::poison(void* memory) {
  size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    bytes = taken_.at(memory).size();
  }
  std::memset(memory, kPoison, bytes);
}

void Machine::give_back(void* memory) {
  poison(memory);
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(memory);
  bytes_taken_ -= found->second.size();
  bytes_given_back_ += found->second.size();
  given_back_.push_back(std::move(found->second));
  taken_.erase(found);
  while (bytes_given_back_ > kMostBytesGivenBack) {
    bytes_given_back_ -= given_back_.front().size();
    given_back_.pop_front();
  }
}

int64_t Machine::bytes_in_use() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(bytes_taken_);
}

void reset() { Machine::instance().reset(); }
void set_devices(int count) { Machine::instance().set_devices(count); }
void set_pauses(uint64_t seed) { Machine::instance().set_pauses(seed); }
void fail(const std::string& call, int n, int code) { Machine::instance().fail(call, n, code); }
int64_t bytes_in_use() { return Machine::instance().bytes_in_use(); }

}  // namespace kuafu::standin
