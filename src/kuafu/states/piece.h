// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kuafu/tensor/param.h"

namespace kuafu {

class StateFile;

/// A flat or whole piece of one parameter, with what is needed to compute norms of the whole.
struct ParamShard {
  Tensor value;
  Tensor grad;  ///< of one on a disk the elements are there after bring_gradient()
  const Param* param = nullptr;
  /// Axes (beyond the parameter's own) that split this piece further: {"data"} under ZeRO.
  Axes split_axes;
  /// Where a flat piece starts in the parameter's shard (p.value), in row-major order.
  int64_t first_element = 0;
  /// The gradient is `grad` times this: what a scaled loss and clipping make of it, multiplied in
  /// the type of the update, so that nothing of an f16 gradient is lost.
  double grad_factor = 1;
  /// Where the pieces of all ranks along split_axes begin in it, in their order, and the last one's
  /// end; empty where nothing splits it further.
  std::vector<int64_t> bounds = {};
  /// Where the gradient lies on a disk: in which row; null: it is here.
  StateFile* gradient_file = nullptr;
  size_t gradient_row = 0;
};

/// The gradients of shards will be brought in this order; nothing where they are here.
void expect_gradients(std::span<const ParamShard* const> shards);
/// The gradient is here until that of another row is brought. Throws DiskError.
void bring_gradient(const ParamShard& shard);

/// Parameters whose gradients become complete together: those last used (in backward) by one block.
struct Group {
  std::string name;
  std::vector<Param*> params;
};

/// Indices of groups that are used together: those of a block, and of what it borrows.
using GroupSet = std::vector<int>;

}  // namespace kuafu
