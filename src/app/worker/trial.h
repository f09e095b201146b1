// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kuafu/comm/simulated.h"
#include "kuafu/engine/registries.h"
#include "kuafu/engine/run.h"

// Small plans tried on real ranks and compared with the simulated ones: for `matrix` and `fuzz`.
namespace kuafu {

struct TrialOptions {
  bool is_certified = true;
  std::chrono::milliseconds timeout{60'000};  ///< of one wait
};

/// What each thread rank of a resolved plan measured, with the certificate.
std::vector<RankResult> run_threads(const Plan& plan, const Registries& registries,
                                    const TrialOptions& options);

/// What a rank metered otherwise than the same rank simulated for that transport; empty where
/// nothing. Peaks are left out where steps before the last one all overflowed: no optimizer state
/// was made, which a simulated run cannot know.
std::string difference(const Plan& plan, const RankResult& real, const RankResult& simulated,
                       Transport transport);

/// The same of all ranks, simulated for the transport whose counts they hold. Throws Refused for
/// what cannot be simulated.
std::string difference(const Plan& plan, const Registries& registries,
                       const std::vector<RankResult>& real, Transport transport);

}  // namespace kuafu
