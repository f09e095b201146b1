// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "kuafu/comm/worlds.h"
#include "kuafu/mesh/mesh.h"

namespace kuafu::tests {

/// Runs `body` on n thread ranks; no wait lasts longer than 60 s. Rethrows the first exception.
inline void run_ranks(int n, const std::function<void(Communicator& world)>& body) {
  run_on_threads(n, body, {.timeout = std::chrono::seconds(60)});
}

/// One rank of a connected mesh and what it sent.
struct MeshRank {
  MeshRank(const std::vector<Axis>& axes, Communicator& world) : mesh(axes, world.rank()) {
    mesh.connect(world, &ledger);
  }
  /// Bytes received over all axes since the ledger was cleared.
  int64_t received() const {
    int64_t sum = 0;
    for (const auto& [label, entry] : ledger.axes()) sum += entry.bytes_received;
    return sum;
  }

  Ledger ledger;
  Mesh mesh;
};

}  // namespace kuafu::tests
