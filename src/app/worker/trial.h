// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kuafu/engine/registries.h"
#include "kuafu/engine/run.h"
#include "kuafu/simulate/compare.h"

// Small plans tried on real ranks and compared with the simulated ones: for `matrix` and `fuzz`.
namespace kuafu {

struct TrialOptions {
  bool is_certified = true;
  std::chrono::milliseconds timeout{60'000};  ///< of one wait
  SaveOptions checkpoint = {};                ///< no folder: none
};

/// Of a rank of such a trial. Where replicas that are not in step are saved their pushes come in turn,
/// so that what goes on can be compared with what did not stop.
RunOptions run_options_of(const Plan& plan, const TrialOptions& options);

/// What each thread rank of a resolved plan measured, with the certificate where it is asked for.
std::vector<RankResult> run_threads(const Plan& plan, const Registries& registries,
                                    const TrialOptions& options);

}  // namespace kuafu
