// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kuafu/engine/engine.h"
#include "kuafu/engine/stepping/stage.h"
#include "kuafu/optim/layer_watch.h"
#include "kuafu/parallel/stale/replicas.h"

namespace kuafu {

/// What an engine is made of: private to `engine*.cpp` and `expert_load.cpp`.
struct Engine::State {
  State(const Plan& p, const Registries& registries, Communicator& w, const Dataset& d,
        const EngineOptions& o);

  void connect(const Registries& registries);
  /// The uses of a step to come, for a policy of tiers that does not warm up.
  void foretell(const Registries& registries);
  /// What this rank holds, and, where replicas go on by themselves, who they push to.
  void make_states(const Registries& registries);
  std::function<double()> slowdown_of_step() const;
  /// Runs a row; the loss of its micro-batches on the last stage, zero on others.
  Tensor run(const pipeline::Row& row, bool is_training);
  /// A local loss summed over the ranks that hold different tokens, axis by axis; then from the
  /// last stage to all.
  double global_loss(const Tensor& partial) const;
  /// Whether nothing in a step waits but for other ranks, in calls of the world.
  bool can_take_turns() const {
    return options.device.is_cpu() && !options.slowdown && is_in_step();
  }
  bool is_in_step() const;  ///< replicas are
  /// Mean over the samples of this replica, which is one rank, where they are not; else global.
  double reported_loss(const Tensor& partial) const;
  double own_loss(const Tensor& partial) const;
  double lr() const;  ///< of the next step; a skipped step is none of the schedule's

  double push_or_apply();  ///< the norm, of its own samples where replicas are not in step
  double apply();
  void step_optimizer(double norm);
  void watch_layers(std::vector<WatchedParam> all);
  void take_figures();

  const Plan plan;
  EngineOptions options;
  Communicator& world;
  Placement placement;
  Mesh& mesh;
  Model model;  // the whole; what other ranks hold stays on meta
  const StageMap map;
  const int pipeline_rank;  // my rank in the pipeline
  BlockGroups groups;
  MicroBatches micro_batches;
  LossScaler scaler;
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<std::unique_ptr<StageWork>> wrapped;
  std::unique_ptr<Executor> executor;
  pipeline::Row training_row, validation_row;
  std::unique_ptr<StaleReplica> stale;  // null where replicas are in step
  std::unique_ptr<Store> store;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<LayerWatch> watch;  // with train.telemetry
  std::optional<LayerFigures> figures;
  std::vector<ParamShard> ready;     // between forward_backward and update
  std::unique_ptr<KeptFlows> flows;  // of the last training step, where they are asked for
  double loss = 0;                   // of the last step, as it was reported
  int64_t steps_done = 0;
  int64_t steps_trained = 0;  // by this engine: what the routers tallied
};

/// A scalar of the device as a number. Meta tensors have none: the simulated world's oracle is 1.
double read_scalar(const Tensor& t, std::string_view name);

}  // namespace kuafu
