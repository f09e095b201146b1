// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kuafu/engine/stepping/executor.h"
#include "kuafu/engine/stepping/flows.h"
#include "kuafu/engine/stepping/groups.h"
#include "kuafu/engine/stepping/micro_batches.h"
#include "kuafu/optim/loss_scaler.h"
#include "kuafu/states/activations.h"
#include "kuafu/tensor/weight_grads.h"

namespace kuafu {

/// What the stages of a rank work with.
struct StageTools {
  Model& model;
  BlockGroups& groups;
  MicroBatches& micro_batches;
  at::Device device;
  AwayActivations* away = nullptr;  ///< where inputs of blocks go meanwhile; null: they stay
  bool recomputes = false;  ///< keeps block inputs alone and makes a graph again in backward
  std::function<double()> slowdown = {};              ///< see EngineOptions; null: 1
  const LossScaler* scaler = nullptr;                 ///< of the losses in backward; null: 1
  const std::unique_ptr<KeptFlows>* flows = nullptr;  ///< where it is not empty, it is filled
};

/// Consecutive blocks of a model with what they hold of micro-batches under way. Autograd runs a
/// block at a time: a block's input is a leaf of its own small graph.
class Stage : public StageWork {
 public:
  /// The stage `index` of the map. @pre tools and map outlive the stage
  Stage(const StageTools& tools, const StageMap& map, int index);

  Tensors forward(int micro_batch, Tensors inputs) override;
  Tensors backward(int micro_batch, Tensors grads) override;
  Tensors input_grad(int micro_batch, Tensors grads) override;
  void weight_grad(int micro_batch) override;
  const FlowTensors& inputs() const override { return inputs_; }
  const FlowTensors& outputs() const override { return outputs_; }

  /// Training keeps what backward needs; else only the loss stays.
  void set_training(bool is_training) { is_training_ = is_training; }
  /// Tokens of each sample that go forward from now on. @pre no axis shards them: flows are (B, S, H)
  void set_sequence(int64_t sequence);
  /// The losses of the micro-batches since the last call, added up; undefined on any but the last
  /// stage. Local: partial over the ranks that hold different tokens.
  Tensor take_loss() { return std::exchange(loss_, Tensor()); }

 private:
  /// A micro-batch between forward and backward, by block.
  struct InFlight {
    std::vector<Flow> inputs, outputs;
    std::vector<Tensors> losses;
    Tensor loss;
    std::vector<WeightGrads> weight_grads;
  };
  Tensors infer(int micro_batch, Tensors flow);
  Tensors run_backward(int micro_batch, Tensors grads, bool is_split);
  void backward_block(size_t b, const Side& side, InFlight& now, Flow& grads);
  void finish_block(size_t b, int micro_batch);
  void keep(const ModelBlock& block, Boundary boundary, const Flow& flow, const Side& side) const;
  void add_loss(const Tensor& loss);
  /// The gradient that backward starts from at a loss.
  double root() const { return tools_.scaler == nullptr ? 1 : tools_.scaler->scale(); }

  StageTools tools_;
  size_t first_, count_;
  bool has_loss_;
  FlowTensors inputs_, outputs_;
  std::set<int> at_once_;  ///< micro-batches whose backward follows their forward
  bool is_training_ = true;
  Tensor loss_;
  std::map<int, InFlight> in_flight_;
};

}  // namespace kuafu
