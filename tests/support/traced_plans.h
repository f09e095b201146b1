// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/plans.h"

// Plans whose events are compared in two worlds: the same for every world.
namespace kuafu::tests {

struct TracedPlan {
  std::string name;
  Plan plan;
};

/// Without recomputation and with each kind of it, under each ZeRO stage where there are replicas,
/// in each type.
std::vector<TracedPlan> traced_family(const Family& family);
/// Every schedule, each with ZeRO stages and whole recomputation where two replicas of it are at
/// most 4 ranks.
std::vector<TracedPlan> traced_pipelines();
/// Every router of experts, way of summing over replicas, and model.
std::vector<TracedPlan> traced_features();
/// So many plans of a pipeline and a tensor or sequence scheme out of the whole product: tensor
/// schemes, single layers of others, sequence schemes, schedules, ZeRO stages and recomputation;
/// none twice.
std::vector<TracedPlan> traced_product(int64_t count, uint64_t seed, int64_t most_ranks);

}  // namespace kuafu::tests
