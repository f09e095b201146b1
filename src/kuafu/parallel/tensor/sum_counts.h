// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/parallel/tensor/axis_types.h"

// How often a scheme's code sums. The products run once on shards of ones, on one rank that stands for
// all (product_calls.h). Each element of a result is then the number of terms it adds up:
//
//   y = x w      K, the width in          dx = dy w^T  M, the width out
//   dw = x^T dy  B S, the tokens; less by the ranks of the axes it stays partial over
//
// A sum made twice along an axis of p ranks is p times as much, one left out p times less.
namespace kuafu {

/// Counts for both roles, forward, the two gradients and backward(). No communication. On meshes of more
/// than 32 ranks axes are taken as shorter, if the scheme can be made on such; products whose code sends
/// messages that are not exchanged for others are passed over. Throws WrongAxes with the product and,
/// where it can be told, the axis.
/// @pre the layouts are those that check_axis_types() accepts, which calls this.
void check_sum_counts(const TensorScheme& scheme, const std::vector<Axis>& axes,
                      const LeftSums& left);

}  // namespace kuafu
