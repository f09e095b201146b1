// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/oracle/layers.h"

// Who visits whom in a mixture of experts. One sample is one group.
// B batch, S sequence, E experts, C slots of an expert and sample, k experts a token chooses.
namespace kuafu::oracle {

/// What a router decides.
struct Decision {
  Tensor choices;  // (B, S, k) i64 experts of a token, best first; undefined where experts choose
  Tensor slots;    // (B, E, C) i64 position in the sample, -1 where empty
};

/// Experts a token chooses; 0 where experts choose tokens.
int64_t num_choices(const ModelPlan& plan);
/// Slots of an expert: ceil(capacity_factor k S / E), at least 1 and at most S.
///     [Lepikhin et al., arXiv 2006.16668, section 2.2; Fedus et al., 2101.03961, equation 3]
int64_t capacity_of(const ModelPlan& plan);

/// The router's own decision from its gates, softmax (B, S, E), ties to the lowest index (of an
/// expert where tokens choose, of a token where experts choose). `name`: the mixture's.
Decision decide(const Call& call, const Tensor& probs, const std::string& name);

/// The decision of others completed by the oracle's gates, and how far it is from them; see
/// oracle.h. `choices` may be undefined.
Decision complete(const Call& call, const Tensor& probs, const std::string& name,
                  const Tensor& slots, const Tensor& choices, Regret& regret);

}  // namespace kuafu::oracle
