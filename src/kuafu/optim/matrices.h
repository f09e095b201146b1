// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "kuafu/optim/optimizer.h"

// Steps that follow from a whole matrix, of matrices that ranks hold parts of. Internal to optim/.
namespace kuafu {

/// My piece of the directions of a parameter's matrices, like the piece.
struct DirectionPiece {
  const ParamShard* shard = nullptr;
  Tensor direction;
};
using StepOfWhole = std::function<Tensor(const Tensor& direction, const LayerSplit& layers)>;

/// The same pieces of their steps, in their order.
///
///   BEFORE        a | b      each rank its piece of the directions of two matrices
///                 c | d
///   at the owner  ac | bd    dealt among the ranks that hold parts, the costliest first, each to the
///                            rank with the least work so far; `whole` of (R, C) without padding
///   AFTER         a' | b'    pieces of the steps; of padding zero
///                 c' | d'
///
/// Each axis that splits matrices carries one all-to-all there and one back for all matrices that
/// the same axes split. q, k and v of one parameter have one owner, each expert its own.
/// Collective over these axes: their ranks list the same parameters, pieces may be empty.
std::vector<Tensor> steps_of_matrices(const std::vector<DirectionPiece>& pieces, const Mesh& mesh,
                                      const StepOfWhole& whole);

}  // namespace kuafu
