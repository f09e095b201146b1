// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kuafu/base/build_info.h"
#include "kuafu/record/json.h"

namespace kuafu {

/// The machine, as far as Linux tells.
struct Machine {
  std::string host;
  std::string system;  ///< "Linux 6.1.0 x86_64"
  std::string cpu_model;
  int64_t cores = 0;  ///< that this process may use
  int64_t memory_bytes = 0;
  int64_t memory_available_bytes = 0;
  std::string gpu;         ///< model names, "" where no driver shows one
  std::string gpu_driver;  ///< version, "" without a driver
};

/// Looks at this machine. Never throws: what cannot be read stays empty or 0.
Machine machine();

/// Now, as "2026-01-31T12:00:00Z".
std::string utc_time();

/// This program's name and arguments as a shell takes them, what lies in the source tree named from
/// its root. "" where Linux does not tell.
std::string command_line();

/// What made a run's numbers: git commit and dirty flag, command, version, compiler, flags, build
/// type, library versions, host, cores, CPU and GPU model, memory, time. docs/record.md lists the
/// fields; scripts/report/provenance.py gives the same block to programs in Python.
Json provenance();

/// Which plug-ins a call has: a hash of each file's bytes, by its name. One that cannot be read is left
/// out: who loads it says why.
Json plugin_hashes(const std::vector<std::string>& plugins);

/// Throws ConfigError where `path` lies in the results/ of the source tree, where results are kept
/// (results/runs apart), and `git` is no commit with a clean tree: nobody could make such a result
/// again. With KUAFU_EVEN_DIRTY set it is written none the less, and the test `results` names it.
void require_recordable(const std::string& path, const GitState& git = git_state());

}  // namespace kuafu
