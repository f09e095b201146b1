// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/dataset/dataset.h"
#include "kuafu/engine/measuring/expert_load.h"
#include "kuafu/engine/measuring/telemetry.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/engine/stepping/flows.h"
#include "kuafu/engine/stepping/stage_map.h"
#include "kuafu/optim/loss_scaler.h"
#include "kuafu/optim/optimizer.h"
#include "kuafu/parallel/stale/order.h"
#include "kuafu/plan/plan.h"
#include "kuafu/states/piece.h"
#include "kuafu/states/row.h"
#include "kuafu/states/tiers.h"

namespace kuafu {

/// What a step found. On meta tensors `loss` and `grad_norm` are the simulated world's oracles.
struct StepReport {
  double loss = 0;       ///< mean over the global batch's tokens, before the update
  double grad_norm = 0;  ///< global, before clipping; of the loss as it is, not as it was scaled
  double lr = 0;
  double loss_scale = 1;     ///< that the step's backward began with
  bool is_skipped = false;   ///< a gradient overflowed: nothing was updated
  double seconds_apart = 0;  ///< of copies for a proof while it was made: no time of the step
};

/// How an engine stands in its world.
struct EngineOptions {
  at::Device device = compute_device();
  Ledger* ledger = nullptr;  ///< books the mesh's traffic by axis; may be null
  /// How many times slower this rank computes in a step: it sleeps after each block, in multiples
  /// of what its thread has computed. For experiments; null: 1.
  std::function<double(int64_t step)> slowdown = {};
  std::vector<int> push_script = {};  ///< order of pushes, see StaleOptions
  /// Policies of tiers are told the uses of a training step before the first, where books are kept.
  bool is_foretold = true;
  /// Else it makes forwards alone: an optimizer keeps nothing, no slots and no masters.
  bool trains = true;
  /// Of an engine that does not train, and a plan with memory.disk_path: weights are at home there and
  /// not on the host.
  bool has_parameters_on_disk = false;
  Wraps wraps = {};
  /// Told, before this rank first talks to others, what it refuses (a ConfigError's words) or "". It
  /// may communicate over the world, and throw in the place of that error.
  std::function<void(const std::string& refused)> on_checked = {};
};

class CacheHome;
class KeyValueCache;
class StaleReplica;

/// One parameter of the whole model.
struct WholeParam {
  const Param* param = nullptr;  ///< planned alone (its value on meta) where another rank has it
  int owner = 0;                 ///< rank along "pipeline"
  bool is_mine = false;
};

/// One rank of a run: builds mesh, model shard and optimizer from a resolved plan, and steps. The
/// same program in every world. Owns the mesh and everything that refers to it.
class Engine {
 public:
  /// Every layout is checked before the first communication; throws Refused or NotDivisible.
  /// @pre plan is resolved for world.size() ranks; world, dataset and registries outlive the
  /// engine.
  Engine(const Plan& plan, const Registries& registries, Communicator& world,
         const Dataset& dataset, const EngineOptions& options);
  ~Engine();

  /// Told of all gradients of a step, summed (not yet clipped, still times the loss scale), before
  /// they are applied. It may read and communicate over the world.
  using OnGradients = std::function<void(std::span<const ParamShard> ready)>;
  /// Forward, backward, gradient sync, clipping, update.
  StepReport step(const OnGradients& on_gradients = {});
  /// The first half: gradients are summed over all ranks and left in gradient(p).
  double forward_backward();
  /// The second half. Returns the gradient norm. Where the loss is scaled and a gradient of any
  /// rank is not finite, parameters and optimizer stay as they are on all ranks.
  double update();

  /// Forward and backward of one of `shares` replicas' samples of a step, of a single rank; leaves
  /// the share's gradients in gradient(p). Returns the mean loss of its samples.
  double forward_backward_share(int64_t step, int64_t share, int64_t shares);

  /// This replica, where they go on by themselves; null in step. A step's loss and norm are then
  /// those of its own samples, and what the other functions do together begins with settle().
  StaleReplica* stale();
  /// Whether replicas are in step: what one reports of a step is of all.
  bool is_in_step() const;
  /// Waits until all replicas have made as many steps, and hold the same values. Collective.
  void settle() const;
  /// After a step: whether all replicas hold the same values now. In step they always do; else they
  /// settle where it `is_due`, on all of them, and soon after any of them `wants` to.
  bool meets(bool wants, bool is_due);
  /// What each server has applied so far; none where replicas are in step. Collective, as means().
  std::vector<PushOrder> pushes();
  /// Of numbers that each replica reports of its own, one a step: as they are where in step.
  std::vector<double> means(std::vector<double> reported);

  /// Mean loss over the plan's validation batches; changes nothing.
  double validate();

  /// Forward of the plan's global batch, without dropout: (train.batch, vocab), on rank 0 the logits
  /// of each sample at a position of its own, undefined on other ranks. Only `inputs` are read,
  /// (train.batch, model.sequence). A causal model looks at no token behind that position, so that
  /// what fills the sequence up to its end changes nothing. Throws ConfigError for a model that has no
  /// such logits. Collective.
  /// With a `cache` (model/key_value_cache.h) the first batch has the first tokens of its samples, all
  /// that positions ask for, and each later one the one token of each sample at its position.
  /// @pre why_no_cache() is empty where there is a cache
  Tensor logits(const Tokens& batch, const std::vector<int64_t>& positions,
                KeyValueCache* cache = nullptr);
  /// Why a forward of one position behind kept keys and values would not be that of the whole sequence
  /// under this plan; empty: it is. The same on every rank.
  std::string why_no_cache() const;

  /// What keeps keys and values on the host between their uses, for a cache of this engine; null without
  /// tiers. It goes before the engine.
  std::unique_ptr<CacheHome> make_cache_home();
  /// Bytes of keys and values that came from there, and that went there, so far.
  std::pair<int64_t, int64_t> cache_moves() const;
  /// Tiers play the forwards of logits(), but for the first ones of caches, of surprisal() and of
  /// last_input() by the policy of the plan from now on. `in_use`: what seen_in_use() said of one like
  /// them, or of one that needs as much everywhere.
  void foretell_alike(std::vector<int64_t> in_use);
  /// Bytes in use on the device beside the parameters in each moment of the last of those forwards; none
  /// without tiers, or where it was foretold.
  std::vector<int64_t> seen_in_use();

  /// Forward of a batch as logits() takes it, with targets: the sum of -log p of those that are not -1,
  /// in nats, the same on all ranks. Throws ConfigError for a model that is not causal. Collective.
  double surprisal(const Tokens& batch);

  /// What goes into the last block, (batch.samples, batch.sequence, hidden) on rank 0, undefined on other
  /// ranks: of a BERT the last hidden states. Sequences may be shorter than model.sequence where
  /// why_no_shorter() is empty. Only `inputs` are read; a BERT's text is its first segment. Throws
  /// ConfigError for a model of images. Collective.
  Tensor last_input(const Tokens& batch);
  /// Why all sequences have model.sequence tokens under this plan; empty: they need not. The same on every
  /// rank.
  std::string why_no_shorter() const;

  /// Names of all layers of the model, in its order, the same on every rank.
  std::vector<std::string> layer_names();
  /// What the last step did to each of them; null without train.telemetry and on meta tensors.
  const LayerFigures* layer_figures() const;
  /// Loads of the mixture blocks so far; empty on meta tensors. Collective.
  std::vector<ExpertLoad> expert_loads() const;
  /// From now on copies of what passes the boundaries of blocks in a training step are kept.
  void keep_flows();
  /// Those of the last one; null where they are not kept.
  const KeptFlows* flows() const;
  /// From now on the routers of this rank keep what they decide in a training step.
  void keep_routes();
  /// What they decided in the last one.
  std::vector<const RouterTally*> routers() const;

  /// Steps done so far: decides the next samples, dropout masks and learning rate.
  int64_t steps_done() const;

  /// EngineOptions::trains.
  bool trains() const;
  const Plan& plan() const;
  const Mesh& mesh() const;
  /// What this rank holds: parameters of its own stages, and copies of what they borrow of others.
  std::vector<Param*> params();
  /// Every parameter of the model in its order, the same on every rank; see whole.h.
  std::vector<WholeParam> all_params();
  /// What this rank keeps of each of them, as data.
  std::vector<StateRow> states() const;
  /// Whose memory copies of states at home take: of the host's with tiers, nobody's on a card.
  RankBook* home_book() const;
  /// What its tiers of memory moved so far, and the uses of a step, once they are known.
  MoveCounts moves() const;
  /// Bytes of parameters that came to the device so far, for forwards that train nothing too; none
  /// without tiers.
  std::optional<int64_t> loaded() const;
  memory::UseTrace uses() const;
  const StageMap& stages() const;
  at::Device device() const;
  /// Tells `observer` of every action of this rank from now on; null stops it.
  void observe(pipeline::ActionObserver* observer);
  /// My shard of a parameter and, between forward_backward and update, of its summed gradient
  /// (undefined where it was not used; without the loss scale), wherever replicas keep them.
  /// Collective.
  Tensor value(const Param& p) const;
  Tensor gradient(const Param& p) const;

  /// What a checkpoint holds: my shards of every parameter, without gradients, and the optimizer; where
  /// replicas are not in step those of what I serve. Collective.
  std::vector<ParamShard> shards() const;
  /// The value of p's shard has its elements until that of another is brought, and may be changed; nothing
  /// to do but where weights lie on a disk. go_on_from() ends it.
  void bring_value(const Param& p);
  Optimizer& optimizer();
  LossScaler& loss_scaler();
  /// Goes on after so many steps, from shards and optimizer state that were loaded. Collective.
  void go_on_from(int64_t steps_done);

 private:
  double take_seconds_apart();
  struct State;
  std::unique_ptr<State> state_;
};

/// Throws Diverged for a loss of a step, from 0, that is no finite number. In step an engine does.
void check_finite(double loss, int64_t step);

}  // namespace kuafu
