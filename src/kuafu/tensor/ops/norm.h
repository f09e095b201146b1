// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <tuple>

#include "kuafu/tensor/tensor.h"

// What the ops of norms share. Internal to tensor/.
namespace kuafu {

using NormResults = std::tuple<Tensor, Tensor, Tensor>;

/// (R, H) rows in f64: what the kernels of other devices compute in.
Tensor f64_rows(const Tensor& t);

/// dx, dweight, dbias on a CPU. `moments` (R, 2) over all shards; undefined: x holds the whole dim
/// of `hidden` elements.
NormResults norm_backward_cpu(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight, const Tensor& moments,
                              int64_t hidden, const std::optional<Tensor>& residual);

}  // namespace kuafu
