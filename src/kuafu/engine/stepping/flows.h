// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kuafu/model/context.h"

namespace kuafu {

/// Where a block meets its neighbours: activations and their gradients.
enum class Boundary : uint8_t { kInput, kOutput, kOutputGradient, kInputGradient };

/// Copies of what passes the boundaries of this rank's blocks in a step, (B, S, H) in all.
class KeptFlows {
 public:
  /// A part that lies together in the whole tensor.
  struct FlowPiece {
    std::string block;
    Boundary boundary;
    Slice place;  ///< in (batch of the step, S, H)
    Tensor data;
  };

  /// `context`: of the model: "embedding" and "head" have it, "blocks.3" that of its layer. @pre it outlives this
  explicit KeptFlows(const Context& context) : context_(context) {}

  /// Keeps a micro-batch's. Nothing for what is no (B, S, H), as a loss, and for a block that only
  /// re-lays.
  void add(const ModelBlock& block, Boundary boundary, const Flow& flow, const Side& side);
  const std::vector<FlowPiece>& pieces() const { return pieces_; }

 private:
  const Context* context_of(const std::string& block) const;

  const Context& context_;
  std::vector<FlowPiece> pieces_;
};

}  // namespace kuafu
