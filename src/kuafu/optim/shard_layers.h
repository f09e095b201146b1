// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/mesh/mesh.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {

struct ParamShard;

/// The layers of a shard, and which of its parameter's is the first of them.
struct ShardLayers {
  ops::LayerRun run;
  int64_t first = 0;
};

ShardLayers layers_of(const ParamShard& shard, const Mesh& mesh);

}  // namespace kuafu
