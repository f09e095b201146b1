// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tensor/tensor.h"

namespace kuafu::ops {

/// (B, S, N parts D), the columns of one head together -> `parts` tensors (B, N, S, D) over memory (B, S, N,
/// D). Copies.
Tensors split_heads(const Tensor& whole, int64_t head_dim, int64_t parts);

/// The other way: (B, S, N parts D) of `parts` tensors (B, N, S, D).
Tensor join_heads(const Tensors& parts);

}  // namespace kuafu::ops
