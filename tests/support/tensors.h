// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/tensor/param.h"

namespace kuafu::tests {

inline constexpr double kEps = 0x1.0p-52;

/// A shard of a virtual f64 tensor of standard normal numbers: element i is a function of (name,
/// global index) only. Requires grad.
Param shard(const std::string& name, const Shape& global, const Layout& layout, const Mesh& mesh,
            const Axes& grad_axes = {}, at::Device device = at::kCPU);

/// (B, S) ids below `vocab`, a function of (site, index).
Tensor ids(int64_t batch, int64_t sequence, int64_t vocab, uint64_t site,
           at::Device device = at::kCPU);

/// Sums x over `axes`, one after the other, in place.
void sum_over(const Mesh& mesh, const Axes& axes, const Tensor& x);

/// max |a - b| / max |b|; infinite where shapes differ or a number is no number.
double relative_error(const Tensor& a, const Tensor& b);

/// True where both have the same shape and bits.
bool is_same(const Tensor& a, const Tensor& b);

}  // namespace kuafu::tests
