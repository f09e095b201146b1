// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "kuafu/comm/communicator.h"
#include "kuafu/states/reduce.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// Starts the sum of `flat` (elements) in place over one group of replicas, by the algorithm that a
/// plan names; several may be under way, each with a tag of its own. What the algorithm needs beside
/// `flat` is freed when the sum is waited for.
using GradientSum = std::function<PendingSum(const Tensor& flat, int tag)>;

/// parallel.data.mode and where it runs.
struct SumOptions {
  std::string mode = "auto";   ///< "auto" | "ring" | "tree" | "hierarchical"
  int64_t ranks_per_node = 8;  ///< consecutive world ranks, for "hierarchical"
};

/// "auto": the transport's own all-reduce. The others go over messages on every transport, so that
/// the ledger counts what the algorithm sends; hierarchical ones under "<label>.intra" and
/// "<label>.inter". Collective over the group.
/// @pre the group outlives it; nodes hold equal numbers of the group's ranks (the plan's check).
GradientSum make_gradient_sum(const SumOptions& options, Communicator& group);

}  // namespace kuafu
