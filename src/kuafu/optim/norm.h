// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/optim/optimizer.h"

// Sums over pieces that ranks of a mesh hold. Internal to optim/.
namespace kuafu {

/// Bit i is set where mesh axis i, not the pipeline, splits the piece among several ranks.
uint64_t splitting_axes(const ParamShard& shard, const Mesh& mesh);

/// Adds the sums of all ranks, in place: each axis carries one all-reduce with all sums that need
/// it. Collective over the mesh; every rank of an axis has as many sums of the same sets of axes.
void sum_over_axes(const std::vector<PartialSums::value_type>& partial, const Mesh& mesh);

}  // namespace kuafu
