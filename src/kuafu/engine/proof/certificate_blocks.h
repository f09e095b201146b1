// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/proof/certificate_step.h"

namespace kuafu {

/// Adds a step to a proof block by block, where what passed the boundaries of its blocks was kept
/// and the reference has blocks. `weights`: before the step, f64. `which`: indices of
/// the blocks that the evidence is of; empty: all.
void check_blocks(const Plan& plan, const Evidence& evidence, const oracle::Tensors& weights,
                  CertificateReference& reference, Proof& proof,
                  const std::vector<size_t>& which = {});

}  // namespace kuafu
