// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/engine/proof/certificate.h"
#include "kuafu/engine/proof/push_replay.h"

namespace kuafu {

/// What a run whose replicas go on by themselves leaves for its certificate.
struct PushedRun {
  bool is_resumed = false;                     ///< from a checkpoint, maybe of step 0
  int64_t begun = 0;                           ///< steps that were made before
  std::vector<int64_t> met;                    ///< steps after which all had settled
  std::vector<PushOrder> orders;               ///< one a server
  std::vector<std::vector<double>> losses;     ///< by worker and step, of its own samples
  WholeTensors values;                         ///< of the servers after all pushes, on rank 0
  SeenPushes seen;                             ///< what it kept of some pushes, on rank 0
  std::optional<double> validation_loss = {};  ///< after its last step
};

/// Which pushes a run of a plan keeps: of every worker those of its last steps, as many as `memory`
/// bytes of rank 0 have room for, but one at least and kLastSteps at most, and one drawn by the seed
/// of those before. `elements`: of the model; `begun`: steps that another run made.
inline constexpr int64_t kLastSteps = 8;
WantedPushes wanted_pushes(const Plan& plan, int64_t elements, int64_t memory, int64_t begun = 0);

/// Adds to a proof every push that was kept: loss and gradient of its worker's samples at the values
/// that it had read, and each server's update from its own state, against the reference, by the
/// bounds of certificate_step.h. What is one thing in two places has one value, to the bit: the
/// gradient that was pushed and that came, values read and the version that they were, the last
/// update and the end. `layout`: whole_model() of an engine. Adds their steps.
void check_pushes(const Plan& plan, const FlatBucket& layout, const PushedRun& run,
                  CertificateReference& reference, Proof& proof, const oracle::UpdateRules& rules);

}  // namespace kuafu
