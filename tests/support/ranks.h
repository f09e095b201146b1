// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "kuafu/comm/worlds.h"
#include "kuafu/conformance/mesh_rank.h"
#include "kuafu/mesh/mesh.h"

namespace kuafu::tests {

using conformance::MeshRank;

/// Runs `body` on n thread ranks; no wait lasts longer than 60 s. Rethrows the first exception.
inline void run_ranks(int n, const std::function<void(Communicator& world)>& body) {
  run_on_threads(n, body, {.timeout = std::chrono::seconds(60)});
}

}  // namespace kuafu::tests
