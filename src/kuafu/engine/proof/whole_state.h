// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kuafu/engine/whole.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu {

/// A training state, whole, without padding, each tensor in the type the ranks keep it in.
struct WholeState {
  WholeTensors values;                        ///< by parameter
  std::map<std::string, WholeTensors> slots;  ///< "m", "v", "velocity", "master"; by parameter
  int64_t num_steps = 0;                      ///< updates made
  /// What ranks that hold the same elements do not agree about, or which elements nobody holds;
  /// empty: nothing.
  std::string disagreement;
};

/// Parameters and optimizer state from all ranks, whatever holds them (shards, flat pieces of ZeRO,
/// copies of tied tables), on rank 0; empty on others. Everything that several ranks hold is
/// compared bit by bit (its 64-bit hash), the whole parameters that ZeRO-1 and 2 keep beside their
/// pieces too. Collective over `world`, the engine's own; makes no call on the mesh.
/// @pre replicas are in step
WholeState whole_state(Engine& engine, Communicator& world);

struct WholeGradients {
  WholeTensors tensors;
  std::string
      disagreement;  ///< which of them has elements that nobody holds, or two shapes; empty: none
};
/// Gradients that are about to be applied, whole on rank 0, in f64 and times `factor`. Collective.
WholeGradients whole_gradients(std::span<const ParamShard> ready, double factor, Engine& engine,
                               Communicator& world);

/// Who visits whom, whole on rank 0: what the oracle takes as routes.
struct WholeRoutes {
  WholeTensors tensors;      ///< "blocks.1.moe" (B, E, C), "blocks.1.moe.choices" (B, S, k), i64
  std::string disagreement;  ///< of ranks that route the same samples; empty: none
};
/// Of the last training step. Collective over `world`. @pre engine.keep_routes() was called before
WholeRoutes whole_routes(Engine& engine, Communicator& world);

/// What passed the boundaries of blocks in the last training step, whole on rank 0, in the types and
/// with the loss scale that it had. Collective over `world`. @pre engine.keep_flows() was called
oracle::BlockFlows whole_flows(Engine& engine, Communicator& world);

/// 64 bits of everything that this rank's optimizer updates: equal where all bits are, but for
/// chance.
uint64_t hash_of(Engine& engine);

}  // namespace kuafu
