// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kuafu/engine/registries.h"
#include "kuafu/engine/stepping/executor.h"
#include "kuafu/plan/arrange.h"

namespace kuafu {

/// Test decorators around what a placement makes (mutants).
struct Wraps {
  std::function<std::unique_ptr<TensorParallel>(std::unique_ptr<TensorParallel>)> scheme = {};
  std::function<std::unique_ptr<AttentionParallel>(std::unique_ptr<AttentionParallel>)> attention =
      {};
  std::function<std::unique_ptr<ExpertParallel>(std::unique_ptr<ExpertParallel>)> experts = {};
  /// `inner` outlives what is made around it.
  std::function<std::unique_ptr<StageWork>(StageWork& inner, int stage)> stage = {};
};

/// Where a plan puts its model, seen from one rank: the mesh, the schemes and attention on it, and
/// the contexts models are written against. Where layers have modes of their own, the mesh has the
/// common refinement of their axes (plan/arrange.h) and each scheme a mesh over the same ranks with
/// its own. Needs no communication; connect before a layer runs. Not movable: contexts refer to the
/// mesh.
class Placement {
 public:
  /// @pre plan is resolved. Throws Refused for what the mesh cannot hold.
  Placement(const Plan& plan, const Registries& registries, int rank, at::Device device,
            const Wraps& wraps = {});
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  /// Connects the mesh and those of the schemes. Collective.
  void connect(Communicator& world, Ledger* ledger);
  Mesh& mesh() { return mesh_; }
  const Context& context() const { return *schemes_[0].context; }
  /// The position in the sample of each place of a sharded sequence; null: place = position.
  const std::vector<int64_t>* order() const { return order_.empty() ? nullptr : &order_; }
  /// This rank's shard of the whole model, planned: parameters on meta, booked to nobody. Throws
  /// NotDivisible where a parameter or an activation does not divide, ConfigError where two
  /// parameters have one name, before any communication.
  Model make_model() const;
  /// Makes what a rank holds of it.
  const ParamFactory& params() const { return params_; }

 private:
  /// A tensor mode of the plan: its context, and its mesh where it is not the plan's.
  struct Scheme {
    Arrangement arrangement;
    std::unique_ptr<Mesh> mesh;
    std::unique_ptr<TensorParallel> code;
    std::unique_ptr<Context> context;
  };

  Scheme make_scheme(const Arrangement& arrangement, const Registries& registries,
                     const ParamFactory& params, const Wraps& wraps) const;
  /// Contexts of the transformer layers; empty where all have the plan's own.
  std::vector<const Context*> layer_contexts() const;

  const Plan plan_;
  const MakeModel make_model_;
  Mesh mesh_;
  const ParamFactory params_;
  std::unique_ptr<AttentionParallel> attention_;
  std::vector<int64_t> order_;
  std::unique_ptr<ExpertParallel> experts_;
  std::vector<Scheme> schemes_;  ///< the plan's own first
};

/// Checks everything about a plan that needs no communication: layouts of every parameter and
/// activation on the ranks of the mesh. Builds the model on meta tensors. Throws Refused; with
/// kNearest it names values that can be placed, each tried (engine/placing/advice.h).
enum class Advice : uint8_t { kAsThrown, kNearest };
void check_placement(const Plan& plan, const Registries& registries,
                     Advice advice = Advice::kAsThrown);

}  // namespace kuafu
