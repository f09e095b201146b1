// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/engine/whole.h"

namespace kuafu {

/// What a few steps of training left behind, whole.
struct Trajectory {
  std::vector<double> losses;
  WholeTensors gradients;   ///< of the first step
  WholeTensors parameters;  ///< after the last step
  double routing_margin = 0;
};

/// One rank with everything: the plan without parallelism, in as many micro-batches.
Plan single_rank(Plan plan);

/// What one rank computes that applies the pushes of `orders` (one a server of the plan), each with
/// the gradients of that worker's samples at the versions it had read. Losses are means over the
/// workers, gradients the sum of their first pushes.
/// Throws InternalError for orders that no run can have recorded.
Trajectory replay_pushes(const Plan& plan, const Registries& registries, const Dataset& data,
                         at::Device device, const std::vector<PushOrder>& orders);

}  // namespace kuafu
