// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "kuafu/parallel/pipeline/action_observer.h"
#include "kuafu/parallel/pipeline/on_cores.h"

namespace kuafu {

/// What the actions of one rank's step take: time between their ends, whatever the machine withheld
/// included. Calls come from the rank's thread.
class ActionClock : public pipeline::ActionObserver {
 public:
  void begin();
  /// Runs `wait` while the clock stands.
  void leave_out(const std::function<void()>& wait);
  /// One number an action since begin(), what came before it included, and one for what followed
  /// the last.
  pipeline::RowSeconds end();

  void note(int rank, const pipeline::Action& action, double start_s, double end_s) override;

 private:
  void take_down();

  pipeline::RowSeconds seconds_;
  double so_far_ = 0;  // of the action under way, up to mark_
  double mark_ = 0;
};

}  // namespace kuafu
