// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/engine/proof/certificate_step.h"

namespace kuafu {

/// The last step of a run whose states are too many for a copy beside them, compared with the oracle
/// while it is made. Of one part of the model at a time (the blocks that share weights: mostly a block
/// by itself) there is more than the run itself needs:
///
///   forward, backward      what passes the boundaries of the blocks is kept
///   part by part           outputs and gradients, from the run's own inputs and output gradients
///   the gradient's norm    of the gradients just compared
///   update, piece by piece weights and slots after it, from those before and the gradient
///
/// What no such look can tell, whether replicas agree and what ranks hold, is not asked: one rank.
class LastStepCheck : public UpdateObserver {
 public:
  /// Of one rank, a model whose oracle has blocks and no router, states in the type of the weights, and
  /// a rule that updates an element by itself. `memory_limit`: bytes that the largest part may take.
  static bool is_possible(const Plan& plan, const Registries& registries, int64_t memory_limit);

  /// @pre is_possible(); registries and world, the engine's own, outlive it
  LastStepCheck(const Plan& plan, const Registries& registries, std::unique_ptr<Dataset> data,
                Communicator& world);

  /// Makes the engine's next step. What the checks take is in seconds_apart: no time of the step.
  StepReport make_step(Engine& engine);
  const Proof& proof() const { return proof_; }

  void before_update(size_t shard, const RulePiece& piece) override;
  void after_update(size_t shard, const RulePiece& piece) override;

 private:
  /// Blocks that share weights, and all of these.
  struct BlockGroup {
    std::vector<size_t> blocks;
    std::vector<std::string> weights;
  };
  /// Of a piece, flat.
  struct Before {
    Tensor value, gradient;
    Tensors slots;
  };
  static std::vector<BlockGroup> parts_of(const oracle::Model& model);

  void check_gradients(Engine& engine, std::span<const ParamShard> ready);
  void check_part(const BlockGroup& part, const std::map<std::string, const ParamShard*>& shards,
                  const oracle::BlockFlows& flows);
  void measure_loss(const Evidence& e, const oracle::Tensors& weights);
  void check_elements(const std::string& name, const RulePiece& piece, int64_t first,
                      int64_t count);
  void finish(Engine& engine, const StepReport& report);
  Evidence evidence() const;

  const Plan plan_;
  const Registries& registries_;
  const std::unique_ptr<Dataset> data_;
  Communicator& world_;
  const std::unique_ptr<oracle::Model> model_;
  const std::unique_ptr<CertificateReference> reference_;
  const std::vector<std::string> blocks_;
  Proof proof_;
  int64_t step_ = 0, num_updates_ = 0;
  LossScale scale_;
  std::vector<std::string> names_;                         // of the shards, in their order
  std::map<size_t, std::vector<std::string>> slot_names_;  // by shard
  Before before_;
  double squares_ = 0;  // of the gradients
  int64_t elements_ = 0, updated_ = 0;
  double loss_ = 0, loss_rounding_ = 0;  // of the last block, by the reference
  double seconds_ = 0;
};

}  // namespace kuafu
