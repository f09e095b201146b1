// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/pipelines.h"

// Pipelines beside every other kind of parallelism.
namespace kuafu::tests {

/// A kind of parallelism that each stage of a pipeline has within itself.
struct Composed {
  std::string name;
  Overrides overrides;
  int64_t replicas = 1;
  int64_t samples = 2;  ///< of a micro-batch: grids with depth and cubes deal out four
  int64_t layers = 1;   ///< of the model, at least
};
inline std::ostream& operator<<(std::ostream& out, const Composed& c) { return out << c.name; }

/// Every tensor scheme, sequence mode, experts, layers of two modes, replicas; alone and together.
const std::vector<Composed>& composed();

/// The five schedules, on two ranks.
const std::vector<Pipe>& two_rank_pipes();

/// `micro_batches` a replica.
Plan composed_plan(const Composed& kind, const Pipe& pipe, int64_t micro_batches,
                   const Overrides& more = {});

}  // namespace kuafu::tests
