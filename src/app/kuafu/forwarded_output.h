// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "kuafu/record/files.h"

namespace kuafu {

/// What a child prints, on its way through this process: mpirun itself aborts, with lines of its own,
/// where nobody reads its output any more.
class ForwardedOutput {
 public:
  ForwardedOutput();
  ~ForwardedOutput();
  ForwardedOutput(const ForwardedOutput&) = delete;
  ForwardedOutput& operator=(const ForwardedOutput&) = delete;

  /// In the child, before it becomes another program.
  void be_writer() const;
  /// In the parent, once it has the child. What comes after a write that fails is dropped;
  /// `on_closed` is called, on another thread, where it failed since nobody reads.
  void begin(std::function<void()> on_closed);
  /// Hands on what is left. @pre the child has ended
  void finish();
  /// Whether all of it was written. @pre finish()
  bool is_whole() const { return is_whole_; }

 private:
  void forward(const std::function<void()>& on_closed);

  File in_, out_;
  std::atomic<bool> has_ended_ = false;
  bool is_whole_ = true;
  std::thread thread_;
};

}  // namespace kuafu
