// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

namespace kuafu {

/// What a back end does for an operation under way. wait() may be called once.
class PendingWork {
 public:
  virtual ~PendingWork() = default;
  /// Orders the caller behind the operation: blocks on CPU ranks, a stream dependency on devices.
  virtual void wait() = 0;
  /// Blocks the host until the result is there.
  virtual void wait_host() { wait(); }
  /// Moves the operation on without blocking; true once a wait would return at once. Throws where
  /// the world has failed.
  virtual bool test() = 0;
};

/// Move-only handle on an operation under way. A default one is already complete.
/// A Work must be waited for before its buffers are read, written or freed; a Work dropped without
/// a wait is waited for by its destructor (errors are then reported by the next call).
class Work {
 public:
  Work() = default;
  explicit Work(std::unique_ptr<PendingWork> pending) : pending_(std::move(pending)) {}
  Work(Work&&) = default;
  Work& operator=(Work&& other) noexcept {
    finish();
    pending_ = std::move(other.pending_);
    return *this;
  }
  ~Work() { finish(); }

  void wait() {
    if (auto pending = std::move(pending_)) pending->wait();
  }
  void wait_host() {
    if (auto pending = std::move(pending_)) pending->wait_host();
  }
  /// True once a wait would return at once; never blocks. It is still to be waited for.
  bool test() { return pending_ == nullptr || pending_->test(); }
  bool is_pending() const { return pending_ != nullptr; }

 private:
  void finish() noexcept {
    try {
      wait();
    } catch (...) {  // the world is torn down: whoever calls next gets the cause
    }
  }
  std::unique_ptr<PendingWork> pending_;
};

}  // namespace kuafu
