// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/parallel/tensor/interface.h"

// What a scheme declares, held against what its code does. Along each axis a shard is replicated, split
// or partial; the products run once on meta tensors, the collectives they call are noted with the operand
// that goes through them (told by its extents), and from these follows what the type of each result is:
//
//   y = x w over one axis, after x and w were moved (gathered, broadcast) or not
//     x split along the width, w too, or one of them whole    y partial: summed
//     x split along the tokens, w whole                       y split along the tokens, never summed
//     x whole, w split along the width out                    y split along it, never summed
//     both whole                                              every rank does the same: refused
//     all else                                                no product: parts that do not meet
//
// and likewise of dx = dy w^T and dw = x^T dy, but that a partial dw may be left to the sum of gradients.
// backward(), which a scheme may write by itself, sums over what these two sum over. That each sum is made
// once is counted on tensors of ones (sum_counts.h).
namespace kuafu {

/// A declaration that the code of a scheme contradicts: no plan with it can be right.
class WrongAxes : public ConfigError {
 public:
  WrongAxes(const std::string& what, Role role) : ConfigError(what), role(role) {}
  Role role;  ///< of the weight it was found with
};

/// The axes over which the weight gradients of a role are left to the sum of gradients.
struct LeftSums {
  Axes expand, contract;
  Axes unknown;  ///< of calls whose operand cannot be told: neither list says anything of these
  const Axes& of(Role r) const { return r == Role::kExpand ? expand : contract; }
};

/// Checks a scheme on axes of its mode. No communication. Throws WrongAxes, which names the product, the
/// axis, what is declared and what follows.
LeftSums check_axis_types(const TensorScheme& scheme, const std::vector<Axis>& axes);

}  // namespace kuafu
