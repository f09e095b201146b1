// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "app/worker/options.h"
#include "kuafu/base/errors.h"
#include "kuafu/comm/communicator.h"
#include "kuafu/plan/plan.h"

namespace kuafu {

/// What the ranks of a launcher read, each by itself, is not the same: nothing ran.
class RanksDiffer : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// What has to be the same on all ranks: the resolved plan with the hash of its data (which may lie
/// elsewhere on each), commit and kernels of the program, plug-ins by the hashes of their files,
/// options of the run but `--json`.
nlohmann::ordered_json read_by_this_rank(const Plan& plan, const WorkerOptions& options);

/// Throws RanksDiffer, with the same words on every rank, where a value of `mine` is another on some
/// rank than on rank 0. Collective.
void check_same_on_ranks(Communicator& world, const nlohmann::ordered_json& mine);

}  // namespace kuafu
