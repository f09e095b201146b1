// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kuafu/plan/plan.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

enum class Mask : uint8_t { kNone, kCausal };

/// softmax(q k^T / sqrt(D)) v where the sequence may be sharded over the axis "sequence".
/// q, k, v (B, N, S/sequence, D), any strides -> same shape. Differentiable.
class AttentionParallel {
 public:
  virtual ~AttentionParallel() = default;
  virtual Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const = 0;
};

/// Attention over a sequence that is whole on this rank. Under selective recomputation only q, k
/// and v are kept and the core runs again in backward. [Korthikanti et al., 2205.05198, section 5]
std::unique_ptr<AttentionParallel> make_local_attention(Recompute recompute);

}  // namespace kuafu
