// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kuafu/engine/registries.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// Test decorators around what a placement makes (mutants).
struct Wraps {
  std::function<std::unique_ptr<TensorParallel>(std::unique_ptr<TensorParallel>)> scheme = {};
  std::function<std::unique_ptr<AttentionParallel>(std::unique_ptr<AttentionParallel>)> attention =
      {};
  std::function<std::unique_ptr<ExpertParallel>(std::unique_ptr<ExpertParallel>)> experts = {};
};

/// Where a plan puts its model, seen from one rank: the mesh, the schemes and attention on it, and
/// the context models are written against. Needs no communication; connect the mesh before a layer
/// runs. Not movable: contexts refer to the mesh.
class Placement {
 public:
  /// @pre plan is resolved. Throws Refused for what the mesh cannot hold.
  Placement(const Plan& plan, const Registries& registries, int rank, at::Device device,
            const Wraps& wraps = {});
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  Mesh& mesh() { return mesh_; }
  const Context& context() const { return *context_; }
  /// The position in the sample of each place of a sharded sequence; null: place = position.
  const std::vector<int64_t>* order() const { return order_.empty() ? nullptr : &order_; }
  /// This rank's shard of the model. Throws NotDivisible where a parameter or an activation does
  /// not divide, before any communication.
  Model make_model() const;

 private:
  const Plan plan_;
  const MakeModel make_model_;
  Mesh mesh_;
  std::vector<std::unique_ptr<TensorParallel>> schemes_;
  std::unique_ptr<AttentionParallel> attention_;
  std::vector<int64_t> order_;
  std::unique_ptr<ExpertParallel> experts_;
  std::unique_ptr<Context> context_;
};

/// Checks everything about a plan that needs no communication: layouts of every parameter and
/// activation on the ranks of the mesh. Builds the model on meta tensors.
void check_placement(const Plan& plan, const Registries& registries);

}  // namespace kuafu
