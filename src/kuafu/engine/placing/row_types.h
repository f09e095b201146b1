// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "kuafu/engine/registries.h"
#include "kuafu/parallel/tensor/axis_types.h"
#include "kuafu/plan/arrange.h"

// A row of the store is replicated, partial or sharded along each axis: its gradient is summed over an
// axis exactly once where it is partial, its norm where it is sharded. What models declare of it
// (Param::grad_axes, Param::layout) is held against what follows from its use (Param::use, row_uses.h)
// and the scheme:
//
//   sharded     the extents of its shard, and the layout of rows of its use
//   partial     weights of products: what the scheme's code leaves partial (axis_types.h);
//               all else: the axes that split the tokens of the stream it meets
//   replicas    the axes of data: the store sums over them, no row does
//
// A row without a use is refused. RowUse::kOwn, which only plug-ins' models may have, is checked for the
// extents of its shard, replicas and experts; its other axes stand on its maker's word.
namespace kuafu {

/// The types that the rows of a plan's models must have.
class RowTypes {
 public:
  /// Checks the schemes of the plan. Throws WrongAxes, which names a parameter, the product and the
  /// axis. @pre `plan` and `context`, the plan's own with those of its layers, outlive this.
  RowTypes(const Plan& plan, const Registries& registries, const Context& context);
  /// Checks the loss and every row of a planned model. No communication. Throws ConfigError, which
  /// names the parameter, the axis, what is declared and what follows.
  void check(const Model& model) const;

 private:
  const Plan& plan_;
  const Context& ctx_;
  bool may_be_own_ = false;  ///< a plug-in's model
  std::vector<std::pair<Arrangement, LeftSums>> left_;
};

/// Both of these.
void check_row_types(const Plan& plan, const Registries& registries, const Model& model,
                     const Context& context);

}  // namespace kuafu
