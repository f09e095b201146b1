// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kuafu/mesh/mesh.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// Which of my rows the slots of all experts hold.
struct Slots {
  Tensor rows;           // (B, E, C) i64 row of my tokens of the sample; -1: empty or not mine
  int64_t num_rows = 0;  ///< my tokens of a sample
  Axes sequence = {};    ///< axes that shard a sample's tokens, major first; C divides by them
};

/// Rows to the ranks that hold their experts and back, where experts are sharded over the axis
/// "expert". B samples of this rank, E experts, C slots of an expert and sample. Differentiable.
class ExpertParallel {
 public:
  virtual ~ExpertParallel() = default;
  /// x (B, S/sequence, H) -> rows of my experts from all ranks, (E/expert, expert B, C/sequence,
  /// H).
  virtual Tensor dispatch(const Tensor& x, const Slots& slots) const = 0;
  /// The way back: y[b, s] = sum over the slots that hold token s of gate * row, (B, S/sequence,
  /// H).
  virtual Tensor combine(const Tensor& rows, const Tensor& gates, const Slots& slots) const = 0;
};

/// By all-to-all over "expert".  [Lepikhin et al., GShard, arXiv 2006.16668, section 3.2]
std::unique_ptr<ExpertParallel> make_all_to_all_experts(const Mesh& mesh);

}  // namespace kuafu
