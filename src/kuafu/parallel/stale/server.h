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
enum StaleTag : int { kNoteTag, kPushTag, kPullTag, kSettleTag, kSeenTag };
inline constexpr int64_t kSettles = -1;  ///< the note of a worker that is through

/// What one server holds, and what has come to it.
class StaleServer {
 public:
  /// @pre all outlive it
  StaleServer(Communicator& group, const FlatBucket& layout, const StaleOptions& options);

  Part part() const { return layout_.mine(); }
  const PushOrder& order() const { return order_; }
  /// Told of every update that it wants from now on. @pre outlives this
  void tell(PushWitness& witness) { witness_ = &witness; }
  const Tensor& values() const { return values_; }  ///< (part), newest

  /// My own worker's push arrives; `gradient`: my part of it.
  void push_own(const Tensor& gradient);
  /// The values for my own worker's next step, once it may start it; undefined before.
  Tensor take_own() { return std::move(own_reply_); }
  void settle_own() { workers_[static_cast<size_t>(group_.rank())].has_settled = true; }
  /// True once every worker has said that it is through: all pushes are applied then.
  bool has_settled() const;
  /// The newest values, sent to all other workers; ready for what comes after.
  void end_phase();
  /// Applies what has arrived and answers who may go on. True where anything moved. Never blocks.
  bool serve();

 private:
  struct Worker {
    int64_t note = 0;
    Tensor gradient;  // of the push under way
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
  };

  int64_t version() const { return static_cast<int64_t>(order_.size()); }
  Tensor in_values(const Part& piece) const {
    return values_.narrow(0, piece.begin - part().begin, piece.size());
  }
  /// Moves the messages of one worker on.
  bool listen(int w);
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
};

}  // namespace kuafu
