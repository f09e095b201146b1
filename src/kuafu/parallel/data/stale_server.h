// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "kuafu/parallel/data/flat.h"

namespace kuafu {

struct StaleOptions {
  int64_t servers = 1;    ///< the first replicas also serve
  int64_t staleness = 1;  ///< steps a worker may be ahead of the slowest
  OptimizerPlan optimizer;
  int64_t steps = 1, batch = 1;  ///< of the run: for the learning rate's schedule
  /// Workers in the order in which every server applies their pushes, until it ends; then, and by
  /// default, as they arrive. Makes a run repeatable.
  std::vector<int> script = {};
  const OptimizerRules& rules = builtin_optimizers();  ///< read when the server is made
};

/// The bounded-staleness parameter server: workers go on by themselves.
/// @pre replicas of one rank; gradients are not clipped.
/// Throws ConfigError for a script that no workers within the bound can follow.
std::unique_ptr<DataParallel> make_stale_server(const Mesh& mesh, StaleOptions options);

}  // namespace kuafu
