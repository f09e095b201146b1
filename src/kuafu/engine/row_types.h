// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/engine/registries.h"

// A row of the store is replicated, partial or sharded along each axis: its gradient is summed over an
// axis exactly once where it is partial, its norm where it is sharded. What models declare of it
// (Param::grad_axes, Param::layout) is held against what follows from elsewhere:
//
//   sharded     the extents of its shard, and what of the scheme lies so
//   partial     weights of products: what the scheme's code leaves partial (axis_types.h);
//               all else: the axes that split the tokens of the stream it meets
//   replicas    the axes of data: the store sums over them, no row does
namespace kuafu {

/// Checks every row of a planned model, and the schemes it is written with. No communication. Throws
/// ConfigError, which names the parameter, the axis, what is declared and what follows.
/// @pre `context` is the plan's own, with those of its layers.
void check_row_types(const Plan& plan, const Registries& registries, const Model& model,
                     const Context& context);

}  // namespace kuafu
