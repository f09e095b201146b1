// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/products.h"

#include "kuafu/tensor/ops.h"

namespace kuafu {

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor multiply_rows(const Tensor& x, const Tensor& w) {
  return ops::matmul(rows(x), w).view({x.size(0), x.size(1), w.size(1)});
}

Tensor multiply_rows(const Tensor& x, const Tensor& w, const Tensor& bias) {
  return ops::matmul_bias(rows(x), w, bias).view({x.size(0), x.size(1), w.size(1)});
}

Tensor multiply_columns(const Tensor& x, const Tensor& dy) {
  return ops::matmul(rows(x).t(), rows(dy));
}

int64_t all_reduced(const Mesh& mesh, const std::string& axis, int64_t elements) {
  const int64_t p = mesh.size(axis), rank = mesh.coord(axis);
  const auto part = [&](int64_t i) { return elements / p + (i % p < elements % p ? 1 : 0); };
  return 2 * elements - part(rank) - part(rank + 1);
}

}  // namespace kuafu
