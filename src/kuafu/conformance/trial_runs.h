// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "kuafu/conformance/findings.h"
#include "kuafu/engine/engine.h"
#include "kuafu/engine/registries.h"
#include "kuafu/engine/run.h"

// Whole plans on thread ranks, for checks of what only a run shows.
namespace kuafu::conformance {

/// A plan of these settings, resolved and placed. Throws Refused for what cannot be placed, and for
/// settings that contradict each other.
Plan placed_plan(const Registries& registries, const Overrides& settings);

/// The dataset of a plan without a corpus.
std::unique_ptr<Dataset> made_up_data(const Plan& plan);

/// Bytes that the reference of a certificate may take: enough for every plan checked here.
inline constexpr int64_t kCertificateBytes = int64_t{1} << 32;

/// What each rank of a training on thread ranks measured. `unbooked`: takes the ops of the last step
/// that nothing books, with the shapes of their tensors; null: nobody looks.
std::vector<RankResult> trained(const Plan& plan, const Registries& registries, bool is_certified,
                                std::set<std::string>* unbooked = nullptr);

/// Fails with each op that nothing books: neither FLOPs, budgets nor traces have it right.
void expect_booked(const std::set<std::string>& unbooked, Notes& notes);

/// Trains the plan on thread ranks: its certificate says `equal`, of the plan itself, and every rank
/// is simulated with the FLOPs, traffic and peak bytes that it had.
void expect_certified(const Plan& plan, const Registries& registries, Notes& notes);

/// First values of all parameters, and the loss of the first step, as thread ranks have them.
struct Start {
  std::map<std::string, Tensor> values;
  double loss = 0;
};
Start start_of(const Plan& plan, const Registries& registries);

}  // namespace kuafu::conformance
