// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kuafu/comm/timed.h"
#include "kuafu/parallel/pipeline/action_observer.h"
#include "kuafu/record/activity.h"

namespace kuafu {

/// What one rank did in one step; seconds of the steady clock that all ranks of a machine share.
struct ObservedStep {
  double begin_s = 0, end_s = 0;
  std::vector<Activity> activities;    ///< by start, none overlaps another
  std::map<std::string, double> sent;  ///< messages of its pipeline: when their send began
  struct Wait {
    std::string message;
    double start_s = 0, end_s = 0;
  };
  std::vector<Wait> waits;  ///< for messages of its pipeline
};

/// "forward 2F0" for an action that computes, "" for messages.
std::string mark_of(const pipeline::Action& action);

/// Listens to one rank: actions of its pipeline, and every call of its communicators.
/// Calls come from one thread.
class StepObserver : public pipeline::ActionObserver, public CallObserver {
 public:
  /// `pipeline`: what tells the pipelines of a world apart, for example their first rank.
  void begin(int rank, int pipeline);
  /// The step since begin(): what an action computes is what no call takes of its time; before the
  /// first action "load", after the last one "update".
  ObservedStep end();

  void note(int rank, const pipeline::Action& action, double start_s, double end_s) override;
  void note(const std::string& axis, Verb verb, double start_s, double end_s) override;

 private:
  struct Span {
    std::string what, label;
    double start_s = 0, end_s = 0;
  };
  std::string message(int boundary, char direction, int micro_batch) const;

  int rank_ = 0, pipeline_ = 0;
  ObservedStep step_;
  std::vector<Span> actions_, calls_;
};

/// The steps of all ranks as one log, from the first begin to the last end. A rank that waits for a
/// message whose send has not begun is idle; waits in collectives count as communication, since no
/// rank can tell by itself who is late.
ActivityLog log_of(const std::vector<ObservedStep>& ranks, const std::string& name);

}  // namespace kuafu
