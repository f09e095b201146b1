// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kuafu/parallel/reduce/gradient_sum.h"
#include "kuafu/parallel/reduce/sum.h"
#include "kuafu/plan/plan.h"
#include "kuafu/states/store.h"

namespace kuafu {

/// Sums that are whole on every replica, by a named algorithm or in a stated order.
std::unique_ptr<Reduce> make_all_reduce(const Mesh& mesh, const SumOptions& options,
                                        SumOrder order);

/// Sums of which every replica gets its equal part.
std::unique_ptr<Reduce> make_reduce_scatter(const Mesh& mesh, SumOrder order);

/// Sums in parts on the first `servers` replicas, which also hold the values that others pull.
/// Throws ConfigError for more servers than replicas. @pre experts are not shared
std::unique_ptr<Reduce> make_servers(const Mesh& mesh, int64_t servers);

/// What a rank holds under plan.parallel.zero and plan.parallel.data, its replicas in step.
/// `has_parameters_on_disk`: TierOptions::has_parameters_on_disk, of plans with memory.disk_path.
/// `params` fills what parameters lack that it made deferred; memory.policy is one of `policies`.
/// @pre the plan is resolved
std::unique_ptr<Store> make_store(const Plan& plan, const Mesh& mesh, const ParamFactory& params,
                                  const memory::PolicyRules& policies = memory::builtin_policies(),
                                  bool has_parameters_on_disk = false);

}  // namespace kuafu
