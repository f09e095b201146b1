// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/worlds.h"

namespace kuafu {

const std::vector<World>& all_worlds() {
  static const std::vector<World> all = {
      {.name = worlds::kThreads,
       .summary = "ranks are threads of one process",
       .needs = build_info::kTorch},
      {.name = worlds::kMpi, .summary = "ranks are MPI processes", .needs = build_info::kMpi},
      {.name = worlds::kNccl,
       .summary = "one process a GPU",
       .needs = build_info::kNccl,
       .has_gpus = true},
      {.name = worlds::kSimulated,
       .summary = "any number of ranks on the meta device, priced by a cost model",
       .needs = build_info::kTorch,
       .is_estimated = true}};
  return all;
}

std::vector<std::string> world_names() {
  std::vector<std::string> names;
  for (const World& world : all_worlds()) names.push_back(world.name);
  return names;
}

bool is_estimated_world(std::string_view name) {
  for (const World& world : all_worlds()) {
    if (world.name == name) return world.is_estimated;
  }
  return false;
}

}  // namespace kuafu
