// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "kuafu/base/trace.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/engine/run.h"

namespace kuafu {

/// What a plan would do on its cluster, from the rank program itself on meta tensors.
struct Prediction {
  std::vector<RankResult> ranks;  ///< losses empty; traffic, FLOPs and memory exact
  double step_seconds = 0;        ///< by the alpha-beta replay of the recorded traces
};

/// Whether a plan's ranks can be recorded alone; simulate() refuses others.
bool can_simulate(const Plan& plan);

/// Runs every rank of a resolved plan on meta tensors, each alone to its end, and replays the
/// traces with the plan's [cluster]. Steps repeat exactly from the second on (the first makes the
/// optimizer state), so two are recorded and the ledger is scaled to the plan's steps. Ledgers are
/// those of ranks on `transport`; times are by the plan's [cluster] alone. `told`: how many ranks are
/// done, after each.
Prediction simulate(const Plan& plan, const Registries& registries,
                    Transport transport = Transport::kThreads,
                    const std::function<void(int ranks_done)>& told = {});

/// One rank of the same: what it sends, computes and holds; what it does goes to the recorder, where
/// there is one.
RankResult simulate_rank(const Plan& plan, const Registries& registries, SimulatedWorld& world,
                         int rank, TraceRecorder* recorder = nullptr);

/// The same of a plan that may need more than its budget. With tiers it is kept where it can be;
/// where not, as with plain memory, there is none, and all leaves that is not used.
RankResult simulate_need(const Plan& plan, const Registries& registries, SimulatedWorld& world,
                         int rank);

}  // namespace kuafu
