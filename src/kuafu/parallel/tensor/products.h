// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/mesh/mesh.h"
#include "kuafu/tensor/tensor.h"

// The local products every scheme is made of, and what a ring's sum of their parts receives.
namespace kuafu {

/// (B, S, K) as (B S, K) rows.
Tensor rows(const Tensor& x);
/// (B, S, K) w (K, M) -> (B, S, M).
Tensor multiply_rows(const Tensor& x, const Tensor& w);
/// The same and a bias (M) for every row.
Tensor multiply_rows(const Tensor& x, const Tensor& w, const Tensor& bias);
/// x^T dy over all rows: (B, S, K), (B, S, M) -> (K, M).
Tensor multiply_columns(const Tensor& x, const Tensor& dy);

/// Elements this rank receives when a ring of the ranks along `axis` all-reduces `elements`. It
/// passes every part but my own and the next one twice; parts differ by one element where the ranks
/// do not divide the whole.
int64_t all_reduced(const Mesh& mesh, const std::string& axis, int64_t elements);

}  // namespace kuafu
