// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/mesh/layout.h"
#include "kuafu/tensor/tensor.h"

// From one layout of an activation to another by the cheapest sequence of moves.
namespace kuafu {

/// One move of a mesh axis between the dims of a tensor; always the minor axis of its dim.
///
///   move                       forward                   backward       received; n = shard before
///   kSlice    (none -> to)     keep my part of `to`      all-gather     (p-1)/p n
///   kExchange (from -> to)     all-to-all                all-to-all     2 (p-1)/p n
///   kCollect  (from -> none)   all-gather along `from`   keep my part   (p-1) n
struct RelayoutMove {
  enum class Kind : uint8_t { kSlice, kExchange, kCollect };
  Kind kind = Kind::kSlice;
  std::string axis;
  int64_t from = -1, to = -1;  ///< dims that lose and gain the axis; -1 for none
  bool operator==(const RelayoutMove&) const = default;
};

/// Moves in order, and the elements a rank receives in forward and backward.
struct RelayoutPlan {
  std::vector<RelayoutMove> moves;
  int64_t forward = 0, backward = 0;
};

/// "slice dim 0 by row; collect dim 2 by col", or "nothing to do".
std::string to_string(const RelayoutPlan& plan);

/// The moves with the fewest elements received in forward and backward together; among equals the
/// fewest moves. `local` is my shard in `from`. Axes that both layouts begin a dim with stay where
/// they are, so the shards of such a dim may differ in extent from rank to rank.
/// Throws NotDivisible where `to` does not divide the tensor, before any communication.
RelayoutPlan plan_relayout(const Mesh& mesh, const Shape& local, const Layout& from,
                           const Layout& to);

/// x after the moves. Differentiable: the gradient takes the way back. Collective.
Tensor relayout(const Mesh& mesh, Tensor x, const RelayoutPlan& plan);

/// x, laid out as `from`, laid out as `to`: plan and moves at once.
///
/// 1d to 2d on 2 x 2 ranks, x (4, S, 6):
///   BEFORE (B, S, H)          every rank 4 x S x 6
///   AFTER  (B/row, S, H/col)  rank (i, j): samples 2i, 2i+1, columns 3j to 3j+2; nothing was sent
Tensor relayout(const Mesh& mesh, const Tensor& x, const Layout& from, const Layout& to);

}  // namespace kuafu
