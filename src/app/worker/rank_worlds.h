// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "app/worker/options.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {

/// `--world`; without it MPI under a launcher, else threads. Throws ConfigError for options that have
/// no effect in it.
std::string world_of(const WorkerOptions& options);

/// The ranks that a launcher started for this world; 0: it has as many as the plan asks for.
int64_t launched_ranks(const std::string& world);

/// Runs `body` on each of the `ranks` of a world that is not simulated. `exit_code`: of a process of
/// MPI whose rank throws.
void run_on_world(const std::string& world, const WorkerOptions& options, int64_t ranks,
                  const std::function<void(Communicator& world)>& body,
                  const ExitCodeOf& exit_code);

}  // namespace kuafu
