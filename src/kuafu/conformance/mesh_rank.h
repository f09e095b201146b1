// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/comm/ledger.h"
#include "kuafu/mesh/mesh.h"

namespace kuafu::conformance {

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

}  // namespace kuafu::conformance
