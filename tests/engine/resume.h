// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/record/support.h"
#include "tests/support/plans.h"

// Runs that save and runs that go on.
namespace kuafu::tests {

/// Steps of all plans here; they save after half of them and at the end.
inline constexpr int64_t kRunSteps = 6, kSavedStep = 3;

/// What checkpoints hold, whole and in f64, by name.
using Contents = std::map<std::string, Tensor>;

/// A run on thread ranks that saves into `folder`.
RankResult run_saving(const Plan& plan, const std::string& folder);
/// A run on thread ranks that goes on from `folder`.
RankResult run_resumed(const Plan& plan, const std::string& folder);

/// "step-00000003" inside the folder.
std::string step_folder(const std::string& folder, int64_t step);
/// As if the run had been killed after `step`.
void forget_after(const std::string& folder, int64_t step);
/// The state after `step`.
Contents contents_of(const std::string& folder, int64_t step);

/// small_plan with kRunSteps steps unless they are given, batch 24 (so that 1, 2, 3 and 4 replicas
/// divide it) and an epsilon of AdamW that rounding does not pass.
Plan run_plan_of(const Overrides& overrides);

/// Both, one after the other.
Overrides with(Overrides a, const Overrides& b);

/// Rounding of the gradients of a step, 8 eps K (layers + 1) as in engine/proof/certificate.cpp, with K =
/// 24 x 16 tokens at most. AdamW with epsilon = lr moves a parameter by no more than its gradient
/// does; a loss follows the drift of all n < 2^18 parameters as sqrt(n) of one, for six steps.
inline constexpr double kCurveTolerance = 8 * 0x1.0p-52 * 24 * 16 * 3 * kRunSteps * 512;

/// Largest |a - b| over the largest |b| of the same kind (parameters, "adamw.m", ...), of all
/// tensors; infinite where names or shapes differ.
double distance(const Contents& a, const Contents& b);

}  // namespace kuafu::tests
