// SPDX-License-Identifier: Apache-2.0
#include "app/worker/rank_worlds.h"

#include "app/worker/run_options.h"
#include "kuafu/base/launcher.h"
#include "kuafu/base/worlds.h"

namespace kuafu {

std::string world_of(const WorkerOptions& options) {
  const std::string usual = launched_rank() ? worlds::kMpi : worlds::kThreads;
  const std::string world = options.world.empty() ? usual : options.world;
  check_world(options, world);
  return world;
}

int64_t launched_ranks(const std::string& world) {
  const bool is_launched = world == worlds::kMpi || world == worlds::kNccl;
  return is_launched ? launched_rank().value_or(LaunchedRank{}).ranks : 0;
}

void run_on_world(const std::string& world, const WorkerOptions& options, int64_t ranks,
                  const std::function<void(Communicator& world)>& body,
                  const ExitCodeOf& exit_code) {
  if (world == worlds::kThreads) return run_on_threads(static_cast<int>(ranks), body);
  if (world == worlds::kNccl) return run_on_nccl(body);
  tell_rank_joins();
  run_on_mpi(body,
             options.mpi_collectives == "native" ? MpiCollectives::kNative : MpiCollectives::kOwn,
             exit_code);
}

}  // namespace kuafu
