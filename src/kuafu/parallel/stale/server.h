// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "kuafu/optim/optimizer.h"
#include "kuafu/parallel/stale/order.h"
#include "kuafu/parallel/stale/replicas.h"
#include "kuafu/states/bucket.h"

// The serving side of a replica. Internal to parallel/stale.
namespace kuafu {

/// Messages between a worker and a server.
enum StaleTag : int { kNoteTag, kPushTag, kPullTag, kSettleTag, kSeenTag, kMeetTag };
inline constexpr int64_t kSettles = -1;  ///< the step of a worker that is through

/// What a worker says with each push. Sent as it is.
struct Note {
  int64_t step = 0;
  int64_t wants_to_meet = 0;  ///< 0 or 1
  double loss = 0;            ///< of its own samples
};
inline constexpr int64_t kNoteNumbers = sizeof(Note) / sizeof(int64_t);

/// What one server holds, and what has come to it.
class StaleServer {
 public:
  /// @pre all outlive it
  StaleServer(Communicator& group, const FlatBucket& layout, const StaleOptions& options);

  FlatPart part() const { return layout_.mine(); }
  const PushOrder& order() const { return order_; }
  /// Told of every update that it wants from now on. @pre outlives this
  void tell(PushWitness& witness) { witness_ = &witness; }
  const Tensor& values() const { return values_; }  ///< (part), newest

  /// My own worker's push arrives; `gradient`: my part of it.
  void push_own(const Tensor& gradient, const Note& note);
  /// The values for my own worker's next step, once it may start it; undefined before.
  Tensor take_own() { return std::move(own_reply_); }
  void settle_own() { workers_[static_cast<size_t>(group_.rank())].has_settled = true; }
  /// After how many steps all workers meet next; below 0: nobody wants to. Of server 0.
  int64_t meets_at() const { return meets_at_; }
  /// Means over the workers of their losses, of the steps that all of them have made since this was
  /// asked last.
  std::vector<double> take_means();
  /// True once every worker has said that it is through: all pushes are applied then.
  bool has_settled() const;
  /// The newest values, sent to all other workers; ready for what comes after.
  void end_phase();
  /// My part and the optimizer, for a checkpoint. @pre has settled
  std::vector<ParamShard> shards() { return pieces({}); }
  Optimizer& optimizer() { return *optimizer_; }
  /// Both were loaded: as if every worker had made so many steps.
  void go_on_from(int64_t steps);
  /// Applies what has arrived and answers who may go on. True where anything moved. Never blocks.
  bool serve();

 private:
  struct Worker {
    Note note;
    Tensor gradient;             // of the push under way
    std::vector<double> losses;  // not taken yet
    Work note_under_way, push_under_way;
    bool is_listened_to = false, is_sending = false;
    bool has_arrived = false;  // its push waits to be applied
    bool is_waiting = false;   // for the values of its next step
    bool has_settled = false;
    int64_t pushed = 0;   // steps applied
    int64_t version = 0;  // of the values it computes with
  };
  struct Reply {
    Work work;
    Tensor values;
    std::unique_ptr<int64_t> meets_at = nullptr;
  };

  int64_t version() const { return first_version_ + static_cast<int64_t>(order_.size()); }
  Tensor in_values(const FlatPart& piece) const {
    return values_.narrow(0, piece.begin - part().begin, piece.size());
  }
  /// Moves the messages of one worker on.
  bool listen(int w);
  void arrive(Worker& worker);
  /// The worker whose push is applied next; -1 for none yet.
  int next() const;
  /// My part of every parameter, with that of a gradient (part) where one is given.
  std::vector<ParamShard> pieces(const Tensor& gradient) const;
  void apply(int w);
  /// Sends the newest values to those who wait and may start their next step.
  void answer();

  Communicator& group_;
  const FlatBucket& layout_;
  const StaleOptions& options_;
  // What it has of the model's states: values, and by name the slots of the rule, on the device.
  Tensor values_;
  RuleSlots slots_;
  std::unique_ptr<Optimizer> optimizer_;
  PushWitness* witness_ = nullptr;
  std::vector<Worker> workers_;
  std::deque<Reply> replies_;
  Tensor own_reply_;
  PushOrder order_;
  int64_t first_version_ = 0;  // updates that others made before order_
  int64_t meets_at_ = -1;
};

}  // namespace kuafu
