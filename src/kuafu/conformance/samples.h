// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/tensor/param.h"

// Tensors that every layout agrees on, and how far two tensors are apart.
namespace kuafu::conformance {

inline constexpr double kEps = 0x1.0p-52;

/// A shard of a virtual f64 tensor of standard normal numbers: element i is a function of (name,
/// global index) only. Requires grad.
Param shard(const std::string& name, const Shape& global, const Layout& layout, const Mesh& mesh,
            const Axes& grad_axes = {}, at::Device device = compute_device());

/// (B, S) ids below `vocab`, a function of (site, index).
Tensor ids(int64_t batch, int64_t sequence, int64_t vocab, uint64_t site,
           at::Device device = compute_device());

/// Sums x over `axes`, one after the other, in place.
void sum_over(const Mesh& mesh, const Axes& axes, const Tensor& x);

/// max |a - b| / max |b|; infinite where shapes differ or a number is no number.
double relative_error(const Tensor& a, const Tensor& b);

/// True where both have the same shape and bits.
bool is_same(const Tensor& a, const Tensor& b);

/// A sum of `length` products in two orders differs by at most 2 (length - 1) eps times the sum of
/// their absolute values [Higham, Accuracy and Stability, section 4.2]; for normal numbers that sum
/// is below 4 times the largest result of a layer, which relative_error divides by.
double tolerance(int64_t length);

}  // namespace kuafu::conformance
