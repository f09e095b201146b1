// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/engine/registries.h"
#include "kuafu/engine/stepping/executor.h"

namespace kuafu {

/// What a block costs and hands on.
struct BlockProfile {
  double flops = 0;     ///< of a forward of one micro-batch, on one rank
  FlowTensors outputs;  ///< on one rank
};

/// The blocks of a plan's model as one rank would run them: a forward on meta tensors in a
/// simulated world of its own. Needs no communication, books nothing.
std::vector<BlockProfile> profile_blocks(const Plan& plan, const Registries& registries, int rank);

/// Which rank of a pipeline works on which blocks, when, and what travels between stages.
struct StageMap {
  pipeline::Timetable schedule;     ///< computations of a step, without messages
  std::vector<int> rank_of_stage;   ///< along the axis "pipeline"
  std::vector<size_t> first_block;  ///< of each stage; the number of blocks behind the last
  std::vector<FlowTensors> inputs;  ///< of each stage on one rank; none behind the last

  int num_stages() const { return static_cast<int>(rank_of_stage.size()); }
  int stage_of(size_t block) const;
  int rank_of(size_t block) const { return rank_of_stage[static_cast<size_t>(stage_of(block))]; }
};

/// The stages of a resolved plan, seen from `rank` of the world: blocks by hand, or balanced by the
/// FLOPs of a forward; the same on every rank. Throws Refused for fewer blocks than stages or
/// parallel.pipeline.blocks that do not add up to them, and what make_timetable throws.
StageMap map_stages(const Plan& plan, const Registries& registries, size_t num_blocks, int rank);

}  // namespace kuafu
