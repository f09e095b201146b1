// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/generation/generate.h"
#include "tests/support/plans.h"

// Generation under a plan on some world, and what the oracle makes of the same prompts.
namespace kuafu::tests {

/// Every kind of plan, on 1 to 8 ranks: families(), shardings() and more.
std::vector<Family> generating_plans();
/// A plan of generation whose weights all matter.
Plan generating_plan(const Family& family);

/// Gives the engine the weights that all matter.
void enliven(Engine& engine, Communicator& world);

/// A batch of tokens of the plan, and a position of each sample.
struct Asked {
  Tokens batch;
  std::vector<int64_t> positions;

  /// Tokens [first, end) of each sample.
  Tokens columns(int64_t first, int64_t end) const;
  /// The token of each sample at its position.
  Tokens at_positions() const;
};
Asked asked_of(const Plan& plan);
/// (train.batch, vocab): what the oracle makes of them.
Tensor oracle_logits(const Plan& plan, const Asked& asked);
/// (1, sequence, vocab): of all positions of one sample.
Tensor oracle_logits(const Plan& plan, const std::vector<int64_t>& tokens);
/// (samples, sequence, hidden): what the oracle's last block takes; texts are first segments.
Tensor oracle_last_input(const Plan& plan, const std::vector<std::vector<int64_t>>& texts);
/// How far f64 logits may be from the oracle's.
double logit_tolerance(const Tensor& expected);

/// Prompts of 1, 5, 10 and 3 tokens.
std::vector<std::vector<int64_t>> uneven_prompts(const Plan& plan);
/// Greedy tokens after a prompt by the oracle, up to the end of the sequence.
std::vector<int64_t> oracle_tokens(const Plan& plan, std::vector<int64_t> prompt);

}  // namespace kuafu::tests
