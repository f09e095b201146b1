// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/communicator.h"
#include "kuafu/engine/run.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu::tests {

/// What rank 0 of a certified run on threads came to, on the tests' own data.
inline RankResult certified_run(const Plan& plan, const Registries& registries) {
  const Requests asked_for_nothing;
  RankResult first;
  run_ranks(static_cast<int>(num_ranks(plan)), [&](Communicator& world) {
    RunOptions options;
    options.is_certified = true;
    options.make_data = data_of;
    options.requests = &asked_for_nothing;
    const RankResult r = run_rank(plan, registries, world, options);
    if (world.rank() == 0) first = r;
  });
  return first;
}

}  // namespace kuafu::tests
