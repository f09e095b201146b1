// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/oracle/oracle.h"

namespace kuafu::tests {

/// Norms of a whole weight by layer: one an index of dim 0 where it is stacked and one of the fused.
inline std::vector<double> layer_norms(const at::Tensor& t, const oracle::Weight& w) {
  const int64_t stacked = w.is_stacked ? t.size(0) : 1;
  const at::Tensor parts = t.reshape({stacked, -1, t.size(-1) / (w.fused * w.run), w.fused, w.run});
  const at::Tensor flat =
      parts.square().sum(at::IntArrayRef{1, 2, 4}).sqrt().reshape({-1}).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// "head.weight", or "qkv.weight[0]" of several.
inline std::string layer_name(const std::string& weight, size_t layer, size_t layers) {
  return layers == 1 ? weight : text(weight, "[", layer, "]");
}

}  // namespace kuafu::tests
