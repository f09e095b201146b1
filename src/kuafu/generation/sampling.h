// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kuafu {

/// How the next token is chosen of its logits.
struct Sampling {
  double temperature = 0;  ///< logits are divided by it; 0 = greedy, the largest logit
  int64_t top_k = 0;       ///< only the k most likely; 0 = all
  double top_p = 1;        ///< only the most likely that together have this probability
  uint64_t seed = 0;
};

/// Throws ConfigError for a value that is none, by the name of its option.
void check_sampling(const Sampling& how);

/// A token that may be drawn.
struct Candidate {
  int64_t token = 0;
  double probability = 0;
};

/// Those that are left of V logits, the most likely first (of equal ones the lower token), their
/// probabilities adding up to 1: softmax(logits / temperature), then the top_k first, then the fewest
/// whose probabilities reach top_p; both made whole again.
///                    [Fan et al., arXiv 1805.04833, section 5.4; Holtzman et al., arXiv 1904.09751]
/// @pre temperature > 0
std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& how);

/// The token of the largest logit, the lowest of equal ones; or one drawn of the candidates by a
/// number that follows from (seed, prompt, position) alone, so that neither the plan nor other prompts
/// change it.
int64_t next_token(std::span<const double> logits, const Sampling& how, int64_t prompt,
                   int64_t position);

}  // namespace kuafu
