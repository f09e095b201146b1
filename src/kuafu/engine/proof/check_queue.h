// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "kuafu/engine/proof/certificate.h"

namespace kuafu {

/// Is called at the start of each thread that checks: work for rank 0, by another name.
void set_start_of_checks(void (*start)());

/// Checks of steps, beside the ranks that make the next ones: a reference takes far longer than a
/// step, and ranks that wait leave their cores idle. What is found is taken in the order of the
/// steps. A proof depends neither on which check ended first nor on how many run at once.
class CheckQueue {
 public:
  /// Compares one step, into a proof of its own whose verdict is that of the steps before, "equal" or
  /// "different": where it is different already, nobody looks for what may excuse a step. One that
  /// was compared before that was known is compared again.
  using Check = std::function<void(Proof& part)>;

  /// `threads`: how many run at once; with 1 each runs when it is added.
  explicit CheckQueue(int64_t threads);

  /// Adds what `check` finds, and then what `refutations` say, to a proof; the latter alone for
  /// one that has ended in "not_run", and without a check. Waits while `threads` run. What does
  /// not run beside others runs by itself. Errors of a check are the proof's reason to be
  /// "not_run".
  void add(Proof& to, const Check& check, std::vector<std::string> refutations,
           bool runs_beside_others);
  /// Waits for all.
  void finish();
  /// The same for a while: whether there is room for one more, whether all have ended.
  bool has_room(std::chrono::seconds patience);
  bool is_finished(std::chrono::seconds patience);

 private:
  struct Pending {
    Proof* to;
    Check check;
    std::string told;  ///< the verdict of the steps before
    std::future<Proof> found;
    std::vector<std::string> refutations;
  };

  bool is_first_done(std::chrono::seconds patience) const;
  void take_first();

  const size_t threads_;
  std::deque<Pending> pending_;
};

}  // namespace kuafu
