// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kuafu/optim/rule.h"
#include "kuafu/plan/plan.h"
#include "kuafu/states/slots.h"

namespace kuafu {

/// What a resumed run needs to go on to the bit.
struct OptimizerState {
  int64_t num_steps = 0;            ///< done so far: the bias correction of AdamW depends on it
  std::vector<SlotTensor> tensors;  ///< the optimizer's own, not copies
};

/// f64 sums of my pieces by the axes of a mesh that split all of them: bit i is axis i.
using PartialSums = std::map<uint64_t, Tensor>;

class LayerWatch;

/// Told of every piece of a step around its update: it may read it, and changes nothing.
class UpdateObserver {
 public:
  virtual ~UpdateObserver() = default;
  /// `shard`: its index in the step's list. After the update the gradient is anything.
  virtual void before_update(size_t shard, const RulePiece& piece) = 0;
  virtual void after_update(size_t shard, const RulePiece& piece) = 0;
};

/// Updates shards in place by the rule of a plan, which declares what slots they have.
class Optimizer {
 public:
  /// Throws ConfigError for kinds and coefficients that there are not. `slots`: those of a store;
  /// null: own ones. @pre they outlive it
  explicit Optimizer(const OptimizerPlan& plan, const OptimizerRules& rules = builtin_optimizers(),
                     RuleSlots* slots = nullptr);

  /// Declares the slots of these shards anew, with so many steps done. A saved run goes on once state().tensors are filled.
  void begin(std::span<const ParamShard> shards, int64_t num_steps = 0);
  /// Of the shards of begin(), or in their order some of them; begins with these where nobody has.
  /// Collective over the mesh where the rule has trust ratios or matrices: every rank lists the same
  /// parameters, each with its own piece, which may be empty.
  void step(std::span<ParamShard> shards, double lr, const Mesh& mesh);
  /// The same where no other rank has a part of them.
  void step(std::span<ParamShard> shards, double lr);
  /// What a step that updates nothing (an overflow) sends: the same, so that every step is alike.
  void skip(std::span<const ParamShard> shards, const Mesh& mesh);
  /// Told of the pieces of every step from now on; null: nobody. @pre outlives the steps
  void watch(LayerWatch* watch) { watch_ = watch; }
  /// The same of an observer.
  void observe(UpdateObserver* observer) { observer_ = observer; }
  bool has_ratios() const { return rule_.has_ratios(); }
  /// On a disk the tensors of a shard have their elements after bring(), until one far from it is
  /// brought, or rest().
  OptimizerState state() const;
  void bring(size_t shard, RuleSlots::Use use) { slots_->use(shard, use); }
  bool has_slots_away() const { return slots_->is_away(); }
  void rest() { slots_->rest(); }
  /// Takes over a copy of another optimizer's state over the same shards. Throws ConfigError where
  /// names or shapes differ.
  void restore(std::span<const ParamShard> shards, const OptimizerState& from);

 private:
  /// The slots of a parameter, by name.
  const std::vector<std::string>& slots_of(const Param& p) const;
  /// optimizer.exclude: no decay, and, but for some of optimizer.scaled_layers, no ratio.
  bool is_left_out(const Param& p) const;
  bool is_scaled(const Param& p) const;
  /// Where the layers of a shard are in the table of its axes.
  struct Rows {
    uint64_t axes = 0;
    int64_t first = 0;
    int64_t held = 0;  // of the parameter's layers, the first that the shard has
    ops::LayerRun run;
  };
  struct Tables {
    std::vector<Rows> rows;  // by shard
    PartialSums sums;
  };
  Tables tables_of(std::span<const ParamShard> shards, const Mesh& mesh) const;
  using States = std::vector<RuleSlots::Row*>;
  /// Tells what a step uses of slots that lie elsewhere, in which order.
  void expect_uses(std::span<const ParamShard> shards, const States& states,
                   const std::vector<RulePiece>& pieces, const Mesh& mesh);
  void expect_gradients_of(std::span<const ParamShard> shards, const std::vector<RulePiece>& pieces,
                           const Mesh& mesh);
  SlotUses uses_of(const RulePiece& piece) const {
    return rule_.slot_uses ? rule_.slot_uses(piece) : SlotUses{};
  }
  /// Gives a piece its slots for a pass.
  void give_slots(RulePiece& piece, const RuleSlots::Row& state, SlotUse use);
  /// What directions are made of, which outlives the use of the slots.
  Tensor kept(const Tensor& direction) const {
    return slots_->is_away() ? direction.clone() : direction;
  }
  /// Measures the pieces and sets their layers; the ratios of each one's layers.
  std::vector<Tensor> ratios_of(std::span<const ParamShard> shards, const States& states,
                                std::vector<RulePiece>& pieces, const Rates& rates,
                                const Mesh& mesh);
  /// The same from sums of squares, (layers, num_norms) f64, that `sums_of` has of each piece.
  std::vector<Tensor> ratios_from(
      std::span<const ParamShard> shards, const Rates& rates, const Mesh& mesh,
      const std::function<Tensor(size_t piece, const ops::LayerRun&)>& sums_of);
  bool updates_whole(const Param& p) const;
  /// The steps of matrices that ranks hold parts of; undefined for other shards.
  std::vector<Tensor> steps_of(std::span<const ParamShard> shards, const States& states,
                               std::vector<RulePiece>& pieces, const Rates& rates,
                               const Mesh& mesh);

  OptimizerPlan plan_;
  Rule rule_;
  std::unique_ptr<RuleSlots> own_slots_;
  RuleSlots* slots_;
  int64_t num_steps_ = 0;
  LayerWatch* watch_ = nullptr;
  UpdateObserver* observer_ = nullptr;
};

/// By plan.kind; throws ConfigError listing the kinds.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerPlan& plan,
                                          const OptimizerRules& rules = builtin_optimizers(),
                                          RuleSlots* slots = nullptr);

/// Learning rate of step t (from 0) out of `steps`: linear warm-up, then the schedule. `batch`:
/// samples of a step, for optimizer.scale_lr.
double learning_rate(const OptimizerPlan& plan, int64_t t, int64_t steps, int64_t batch = 0);

/// Euclidean norm of the whole gradient over all shards: each piece is summed over exactly the axes
/// that split it, so that replicas count once; those of the stages of a pipeline are added up, tied
/// parameters where their owner is. Collective over the mesh, axis by axis.
/// On meta tensors the communication is made and 1 returned (the simulated world's oracle).
/// `device`: where shards are, or would be on a rank without any.
double global_grad_norm(std::span<const ParamShard> shards, const Mesh& mesh,
                        at::Device device = compute_device());
/// min(1, clip / norm), for ParamShard::grad_factor; 1 where clip = 0 or the norm is NaN, so that the
/// loss shows it. Throws ConfigError for clip < 0.
double clip_factor(double norm, double clip);

}  // namespace kuafu
