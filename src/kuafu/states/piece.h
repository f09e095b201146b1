// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/tensor/param.h"

namespace kuafu {

/// A flat or whole piece of one parameter, with what is needed to compute norms of the whole.
struct ParamShard {
  Tensor value, grad;
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
};

/// Parameters whose gradients become complete together: those last used (in backward) by one block.
struct Group {
  std::string name;
  std::vector<Param*> params;
};

/// Indices of groups that are used together: those of a block, and of what it borrows.
using GroupSet = std::vector<int>;

}  // namespace kuafu
