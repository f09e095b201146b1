// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/parallel/tensor/layers.h"
#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {

Tensor add_rows(const Mesh& mesh, const Tensor& x, const Tensor& table, const Tensor& ids,
                const TokenGrid& grid) {
  const Tensor mine = local_tokens(mesh, ids, grid);
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{in[0] + ops::embedding(mine, in[1], 0)}, {}};
  };
  const Backward backward = [mine, count = table.size(0)](const Tensors&, const Tensors& grads,
                                                          const std::vector<bool>&) -> Tensors {
    return {grads[0], ops::embedding_backward(grads[0].contiguous(), mine, 0, count)};
  };
  return differentiable({x, table}, forward, backward)[0];
}

Tensor embed_patches(const Mesh& mesh, const Tensor& images, const Tensor& w, const Tensor& bias,
                     const Tensor& first, const TokenGrid& grid) {
  const std::vector<TokenRun> runs = token_runs(mesh, grid);
  KUAFU_CHECK(runs.size() == 1, "patches in ", runs.size(), " runs of positions");
  const Slice s = local_slice(mesh, grid);
  const int64_t batch = s.extent[0], length = s.extent[1], start = runs[0].position;
  const int64_t skip = start == 0 && length > 0 ? 1 : 0;  // the token in front is mine
  const Tensor patches =
      images.narrow(0, s.offset[0], batch).narrow(1, start + skip - 1, length - skip).contiguous();
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    const Tensor y = at::empty({batch, length, in[0].size(1)}, in[0].options());
    const Tensor tokens = y.narrow(1, skip, length - skip);
    tokens.copy_(multiply_rows(patches, in[0]));
    if (in[1].defined()) tokens.add_(in[1]);
    if (skip == 1) y.narrow(1, 0, 1).copy_(in[2]);
    return {{y}, {}};
  };
  const Backward backward = [patches, skip, length](const Tensors&, const Tensors& grads,
                                                    const std::vector<bool>& needs) -> Tensors {
    const Tensor dy = grads[0].narrow(1, skip, length - skip).contiguous();
    const Tensor dfirst =
        skip == 1 ? grads[0].select(1, 0).sum(0) : at::zeros({dy.size(2)}, dy.options());
    return {multiply_columns(patches, dy), needs[1] ? ops::sum_rows(dy) : Tensor(), dfirst};
  };
  return differentiable({w, bias, first}, forward, backward)[0];
}

}  // namespace kuafu
