// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kuafu/base/build_info.h"

namespace kuafu {

/// What options, suites, records and communicators call the worlds that ranks live in. A name stands
/// here and nowhere else in src/ (tests/scripts/kind_names_test.py).
namespace worlds {
inline constexpr const char* kThreads = "threads";
inline constexpr const char* kMpi = "mpi";
inline constexpr const char* kNccl = "nccl";
inline constexpr const char* kSimulated = "simulated";
}  // namespace worlds

/// A world as lists show it, and what others must know of it.
struct World {
  std::string name, summary;
  BuildFeature needs;         ///< it is there where the build has this
  bool is_estimated = false;  ///< computes no numbers; its times are those of a cost model
  bool has_gpus = false;      ///< one a rank
};

/// The one table of them.
const std::vector<World>& all_worlds();
/// Their names.
std::vector<std::string> world_names();
/// Whether the world of that name is estimated; false for names that no world has.
bool is_estimated_world(std::string_view name);

}  // namespace kuafu
