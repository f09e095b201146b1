// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "app/worker/matrix.h"
#include "kuafu/engine/placing/placement.h"
#include "kuafu/simulate/simulate.h"

namespace kuafu::matrix {
namespace {

/// The device bytes that the fullest rank needs at most and, where all leaves that is not used, at
/// least, in their middle: what a policy with a budget is given, so that it has to choose.
int64_t scarce_budget(Plan plan, const Registries& registries) {
  int64_t sum = 0;
  for (const std::string& policy : {MemoryPlan{}.policy, std::string("host")}) {
    plan.memory.policy = policy;
    plan.memory.device.reset();
    SimulatedWorld world(static_cast<int>(num_ranks(plan)));
    int64_t most = 0;
    for (int rank = 0; rank < num_ranks(plan); ++rank) {
      most = std::max(most, simulate_need(plan, registries, world, rank).peak_bytes);
    }
    sum += most;
  }
  return sum / 2;
}

}  // namespace

Plan placed(const Overrides& settings, const Registries& registries) {
  const TensorModes modes = registries.tensor_modes();
  Plan plan = resolve(parse_plan("", "plan", registries.choices(), settings), 0, modes);
  check_placement(plan, registries);
  if (plan.memory.has_tiers() && plan.memory.device) {
    plan.memory.device = scarce_budget(plan, registries);
  }
  return plan;
}

}  // namespace kuafu::matrix
