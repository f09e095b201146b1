// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/tensor/tensor.h"

// The local products every scheme is made of.
namespace kuafu {

/// (B, S, K) as (B S, K) rows.
Tensor rows(const Tensor& x);
/// (B, S, K) w (K, M) -> (B, S, M).
Tensor multiply_rows(const Tensor& x, const Tensor& w);
/// x^T dy over all rows: (B, S, K), (B, S, M) -> (K, M).
Tensor multiply_columns(const Tensor& x, const Tensor& dy);

}  // namespace kuafu
