// SPDX-License-Identifier: Apache-2.0
//
// ZeRO-2: gradients sharded too.                  [Rajbhandari et al., arXiv 1910.02054, P_os+g]
//
//   Picture   block 2   | . . . | . . . |   reduced, freed: replica r keeps part r
//             block 1   | g g g | g g g |   whole while its backward runs, until its sum is there
//             block 0                       no gradients yet
//
//   Math      Sums over micro-batches and over replicas commute: part r of the gradient is the sum
//             over micro-batches of part r of each one's sum over the replicas.
//
//   Cost      bytes received a step of M micro-batches: M (n-1)/n b psi reduce-scatter and
//             (n-1)/n b psi all-gather; the all-reduce's for M = 1, what more micro-batches cost is
//             the price of not keeping whole gradients between them. Memory: b psi parameters, and
//             b psi of gradients and the optimizer's bytes over n.
//
//   Code      a group's gradients are moved into one flat buffer, reduced, and freed before those
//             of the group before it are moved.

#include <ATen/ATen.h>

#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/data/zero.h"

namespace kuafu {

void Zero2::reduce(ZeroShard& shard) {
  const CategoryScope scope(Category::kCommunication);
  const Tensor flat = scheme_sum(shard);
  const at::IntArrayRef extent(shard.layout.part);
  if (shard.sum.defined()) {
    start_sum(shard, at::empty(extent, flat.options()), flat);
    return;
  }
  const CategoryScope kept(Category::kGradient);
  shard.sum = at::empty(extent, flat.options());
  start_sum(shard, shard.sum, flat);
}

}  // namespace kuafu
