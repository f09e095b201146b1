// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/engine/proof/certificate_reference.h"
#include "kuafu/parallel/stale/push_witness.h"
#include "kuafu/states/bucket.h"

namespace kuafu {

/// What a replay of pushes is told.
struct PushReplay {
  const Plan& plan;
  const FlatBucket& layout;              ///< of the servers' parts: whole_model() of an engine
  const std::vector<PushOrder>& orders;  ///< one a server
  int64_t steps = 0;                     ///< of every worker whose losses are wanted
  at::ScalarType type = at::kDouble;  ///< of passes; weights and updates of half precision are f32
  const oracle::UpdateRules& rules = oracle::builtin_updates();
};

/// What it finds.
struct ReplayedPushes {
  std::vector<std::vector<double>> losses;  ///< by worker and step, means over the worker's samples
  oracle::Tensors weights;                  ///< after the pushes that the losses took, or after all
};

/// Applies recorded pushes in their order by oracle::update, each with the reference's gradient of
/// that worker's samples at the versions it had read. Where `steps` are all, every push is applied;
/// else as many as those steps read. Throws InternalError for orders that no run can have recorded.
ReplayedPushes replay_pushes(const PushReplay& replay, CertificateReference& reference);

}  // namespace kuafu
