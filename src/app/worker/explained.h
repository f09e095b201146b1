// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/worker/explain_moves.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/parallel/tensor/interface.h"
#include "kuafu/record/json.h"
#include "kuafu/simulate/model_parts.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu {

/// Version of what explained_json() writes.
inline constexpr int64_t kExplainFormat = 1;

/// A parameter's row: how it lies on the mesh.
struct ExplainedParam {
  std::string name;
  Shape global;
  std::string layout;
  Shape shard;  ///< of rank 0
  Axes summed;  ///< axes its gradient is summed over
};

/// Elements rank 0 receives for one layer and micro-batch.
struct ExplainedCost {
  std::string layers;  ///< "" for the plan's own scheme, "2 to 5" for a range with one of its own
  std::string layer;
  Cost cost;
};

/// What `kuafu explain` knows of a plan.
struct Explained {
  Plan plan;
  std::vector<Axis> axes;
  Json data;               ///< what the ranks would read, as a run's document; null where it cannot
  std::string data_words;  ///< the same, or why it cannot
  ModelParts parts;
  Json pipeline;                       ///< null for one stage
  std::vector<ExplainedParam> params;  ///< of every block
  std::vector<ExplainedCost> costs;
  RankResult first;                     ///< rank 0
  RankResult fullest;                   ///< the rank of the first replica with the highest peak
  std::optional<ExplainedMoves> moves;  ///< of that rank; none where all is on the device
  int64_t fullest_rank = 0;
  int64_t simulated_ranks = 0;  ///< ranks looked at for it
  uint64_t flops = 0;           ///< a step, all ranks
  uint64_t flops_recomputed = 0;
  uint64_t flops_optimizer = 0;  ///< a step, all ranks, of the optimizer's products
};

/// Finds all of it on meta tensors. Throws Refused for what cannot be placed.
Explained explain(const Plan& plan, const Registries& registries);

/// What a model's first parameter of tokens is called.
bool is_token_table(const Param& p);

/// docs/explain.md has the fields.
Json explained_json(const Explained& all);

}  // namespace kuafu
