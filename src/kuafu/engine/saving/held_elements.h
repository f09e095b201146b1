// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/checkpoint/checkpoint.h"
#include "kuafu/mesh/mesh.h"
#include "kuafu/optim/optimizer.h"

namespace kuafu {

// Which part of which global tensor a rank's tensors are. Internal to saving.

/// The elements of a parameter's shard that a ParamShard holds, as boxes of the global tensor: a
/// whole shard is one box, a flat piece a few. They follow each other in the memory of the piece.
struct HeldElements {
  const Param* param = nullptr;
  std::vector<Slice> boxes;   ///< padding included
  std::vector<Slice> inside;  ///< each without padding; may be empty

  /// The same for all that hold the same elements.
  std::string key() const;
};
HeldElements held_by(const ParamShard& shard, const Mesh& mesh);

/// Box b, without padding, of a tensor with the elements of the piece: a view.
Tensor box_of(const Tensor& piece, const HeldElements& held, size_t b);

/// A tensor as a checkpoint names it.
struct SavedTensor {
  std::string name;
  Tensor tensor;
  size_t shard = 0;  ///< whose elements it has
  std::string slot;  ///< "master", of the optimizer's rule, or of a value without copy none
};

/// Everything to save of the engine's shards: the values (of half-precision ones the master copies)
/// and the optimizer's tensors, "kind.m.<parameter>".
std::vector<SavedTensor> saved_tensors(const std::vector<ParamShard>& shards,
                                       const OptimizerState& state, const std::string& kind);

/// Reads the elements of a piece, converted to its element type; leaves padding as it is.
void fill(const Tensor& piece, const HeldElements& held, const Checkpoint& from,
          const std::string& name);

}  // namespace kuafu
