// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/products.h"

#include "kuafu/tensor/ops.h"

namespace kuafu {

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor multiply_rows(const Tensor& x, const Tensor& w) {
  return ops::matmul(rows(x), w).view({x.size(0), x.size(1), w.size(1)});
}

Tensor multiply_columns(const Tensor& x, const Tensor& dy) {
  return ops::matmul(rows(x).t(), rows(dy));
}

}  // namespace kuafu
