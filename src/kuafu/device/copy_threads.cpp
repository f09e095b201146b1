// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "kuafu/base/errors.h"
#include "kuafu/device/token_bucket.h"
#include "kuafu/device/transfer.h"

namespace kuafu::device {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;

class CopyThreads final : public CopyQueues {
 public:
  explicit CopyThreads(const CopyThreadsOptions& options)
      : queues_{Queue(options.to_device_gbs), Queue(options.to_host_gbs)},
        clock_(options.clock == nullptr ? own_clock_ : *options.clock),
        watch_(options.watch) {
    for (const Direction d : {Direction::kToDevice, Direction::kToHost}) {
      of(d).thread = std::thread([this, d] { run(d); });
    }
  }

  ~CopyThreads() override {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    for (Queue& q : queues_) q.thread.join();
  }

  Ticket copy(Direction direction, const Copy& copy) override {
    KUAFU_CHECK(copy.bytes >= 0, "a copy of ", copy.bytes, " bytes");
    const std::lock_guard lock(mutex_);
    for (const Ticket& t : copy.after) check_issued(t);
    Queue& q = of(direction);
    q.waiting.push_back(copy);
    ++q.issued;
    changed_.notify_all();
    return {direction, q.issued};
  }

  void wait(const Ticket& ticket) override {
    std::unique_lock lock(mutex_);
    check_issued(ticket);
    changed_.wait(lock, [&] { return has_ended(ticket); });
    if (const std::exception_ptr failure = failure_of(ticket)) std::rethrow_exception(failure);
  }

  void hold(const Ticket& ticket) override { wait(ticket); }

  bool is_done(const Ticket& ticket) override {
    const std::lock_guard lock(mutex_);
    check_issued(ticket);
    return has_ended(ticket);
  }

  QueueStats stats(Direction direction) override {
    const std::lock_guard lock(mutex_);
    return of(direction).stats;
  }

 private:
  struct Queue {
    explicit Queue(std::optional<double> gbs) : link(gbs) {}
    TokenBucket link;         // of the queue's thread alone
    int64_t last_end_ns = 0;  // of the queue's thread alone
    std::thread thread;
    std::deque<Copy> waiting;
    int64_t issued = 0, ended = 0;
    std::map<int64_t, std::exception_ptr> failures;  // by number
    QueueStats stats;
  };

  Queue& of(Direction d) { return queues_[static_cast<size_t>(d)]; }
  bool has_ended(const Ticket& t) { return of(t.queue).ended >= t.number; }

  void check_issued(const Ticket& t) {
    KUAFU_CHECK(t.number >= 0 && t.number <= of(t.queue).issued, to_string(t),
                " was never given out");
  }

  std::exception_ptr failure_of(const Ticket& t) {
    const auto found = of(t.queue).failures.find(t.number);
    return found == of(t.queue).failures.end() ? nullptr : found->second;
  }

  void run(Direction direction) {
    Queue& q = of(direction);
    std::unique_lock lock(mutex_);
    while (true) {
      bool was_idle = q.waiting.empty();
      changed_.wait(lock, [&] { return is_ending_ || !q.waiting.empty(); });
      if (is_ending_) return;
      const Copy copy = std::move(q.waiting.front());
      q.waiting.pop_front();
      const Ticket ticket{direction, q.ended + 1};
      std::exception_ptr failure = wait_for(ticket, copy.after, lock, was_idle);
      if (is_ending_) return;
      QueueStats did;
      lock.unlock();
      const int64_t start = was_idle ? clock_.now_ns() : q.last_end_ns;
      if (was_idle) q.link.begin(start);
      if (!failure) failure = attempt(ticket, copy, q.link, did.bytes);
      q.last_end_ns = clock_.now_ns();
      did.busy_ns = q.last_end_ns - start;
      lock.lock();
      end(ticket, did, failure);
    }
  }

  /// Waits for copies of the other queue; the failure of the first that failed.
  std::exception_ptr wait_for(const Ticket& ticket, const std::vector<Ticket>& after,
                              std::unique_lock<std::mutex>& lock, bool& was_idle) {
    std::exception_ptr failure;
    for (const Ticket& t : after) {
      if (!has_ended(t)) {
        was_idle = true;
        if (watch_ != nullptr) {
          lock.unlock();
          watch_->waits(ticket, t);
          lock.lock();
        }
        changed_.wait(lock, [&] { return is_ending_ || has_ended(t); });
      }
      if (!failure) failure = failure_of(t);
    }
    return failure;
  }

  std::exception_ptr attempt(const Ticket& ticket, const Copy& copy, TokenBucket& link,
                             int64_t& copied) {
    try {
      if (watch_ != nullptr) watch_->begins(ticket);
      move(copy, link, copied);
      if (watch_ != nullptr) watch_->ends(ticket);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  void move(const Copy& copy, TokenBucket& link, int64_t& copied) {
    while (copied < copy.bytes) {
      if (is_ending()) return;
      const int64_t piece = std::min(kPiece, copy.bytes - copied);
      std::memcpy(static_cast<std::byte*>(copy.to) + copied,
                  static_cast<const std::byte*>(copy.from) + copied, static_cast<size_t>(piece));
      copied += piece;
      const int64_t now = clock_.now_ns();
      const int64_t passed = link.take(piece, now);
      if (passed > now) clock_.sleep_until(passed);
    }
  }

  bool is_ending() {
    const std::lock_guard lock(mutex_);
    return is_ending_;
  }

  void end(const Ticket& ticket, const QueueStats& did, const std::exception_ptr& failure) {
    Queue& q = of(ticket.queue);
    q.ended = ticket.number;
    q.stats.copies += failure ? 0 : 1;
    q.stats.bytes += did.bytes;
    q.stats.busy_ns += did.busy_ns;
    if (failure) q.failures[ticket.number] = failure;
    changed_.notify_all();
  }

  SteadyClock own_clock_;
  std::mutex mutex_;  // of all below but what is a thread's alone
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::array<Queue, 2> queues_;
  Clock& clock_;
  CopyWatch* const watch_;
};

void check_rate(std::optional<double> gbs) {
  KUAFU_REQUIRE(!gbs || *gbs > 0, "a link of ", *gbs, " GB/s; a rate above 0 is right, or none");
}

}  // namespace

std::string to_string(Direction direction) {
  return direction == Direction::kToDevice ? "to device" : "to host";
}

std::string to_string(const Ticket& ticket) {
  return text("copy ", ticket.number, " ", to_string(ticket.queue));
}

std::unique_ptr<CopyQueues> make_copy_threads(const CopyThreadsOptions& options) {
  check_rate(options.to_device_gbs);
  check_rate(options.to_host_gbs);
  return std::make_unique<CopyThreads>(options);
}

}  // namespace kuafu::device
