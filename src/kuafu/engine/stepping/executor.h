// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/parallel/pipeline/action_observer.h"
#include "kuafu/parallel/pipeline/timetable.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// One tensor of what travels between stages, as a rank holds it.
struct FlowTensor {
  Shape shape;
  at::ScalarType type = at::kFloat;
  bool operator==(const FlowTensor&) const = default;
};
using FlowTensors = std::vector<FlowTensor>;

/// What a stage of a pipeline does for one micro-batch: blocks of a model, or a stand-in.
class StageWork {
 public:
  virtual ~StageWork() = default;
  /// What the stage before hands over (nothing: the first stage) -> what the next one takes
  /// (nothing: the last stage keeps its loss).
  virtual Tensors forward(int micro_batch, Tensors inputs) = 0;
  /// Gradients of the outputs (nothing: the last stage) -> of the inputs, with the weights' own.
  virtual Tensors backward(int micro_batch, Tensors grads) = 0;
  /// The same, the gradients of weights left for later.
  virtual Tensors input_grad(int micro_batch, Tensors grads) = 0;
  virtual void weight_grad(int micro_batch) = 0;
  /// What forward takes; and what it gives, which is also what backward takes.
  virtual const FlowTensors& inputs() const = 0;
  virtual const FlowTensors& outputs() const = 0;
};

/// A rank's place in its pipeline.
struct PipelineRank {
  Communicator* pipeline = nullptr;  ///< the ranks of the pipeline, in order
  std::vector<int> rank_of_stage;
  std::vector<StageWork*> stages;  ///< by stage; null where it lives on another rank
  at::Device device = compute_device();
};

/// Works down one row of a lowered timetable: the one interpreter of every schedule. A receive is
/// posted where the row says and waited for where its data are used; of each stage at most
/// kSendsUnderWay messages a direction are under way, the oldest waited for before the next one.
/// That cannot deadlock: a message is received no later in the receiver's row than the first action
/// that starts after its data came to be, so whoever waits, waits for what starts earlier.
class Executor {
 public:
  static constexpr size_t kSendsUnderWay = 2;

  /// @pre the communicator and the stages outlive the executor
  explicit Executor(PipelineRank rank) : rank_(std::move(rank)) {}

  /// Every rank of the pipeline runs its row of one timetable. All messages are through afterwards.
  void run(const pipeline::Row& row);

  /// Tells `observer` of every action from now on; null stops it.
  void observe(pipeline::ActionObserver* observer) { observer_ = observer; }

 private:
  struct Message {
    Tensors tensors;
    std::vector<Work> works;
    void wait();
  };
  /// A receive, or what a stage on this rank handed over, by the action that uses it.
  using Key = std::pair<int, int>;  // stage, micro-batch

  void compute(const pipeline::Action& a);
  void hand_on(const pipeline::Action& a, Tensors tensors);
  void post_receive(const pipeline::Action& a);
  void send(const pipeline::Action& a);
  Tensors take(std::map<Key, Message>& box, const pipeline::Action& a, pipeline::Op as);
  void note(const pipeline::Action& a, double start) const;

  PipelineRank rank_;
  pipeline::ActionObserver* observer_ = nullptr;
  std::map<Key, Message> activations_, gradients_;  // for a stage, arrived or under way
  std::map<Key, Tensors> made_, made_gradients_;    // of a stage, to be sent
  std::map<Key, std::deque<Message>> under_way_;    // by stage and direction
};

}  // namespace kuafu
