// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/tensor/first_token.h"

#include <ATen/ATen.h>

#include "kuafu/parallel/tensor/products.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {

Tensor first_token(const Mesh& mesh, const Tensor& x, const TokenGrid& grid) {
  const bool is_mine = token_runs(mesh, grid).front().position == 0;
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    if (is_mine) return {{in[0].narrow(1, 0, 1).contiguous()}, {}};
    return {{at::zeros({in[0].size(0), 1, in[0].size(2)}, in[0].options())}, {}};
  };
  const Backward backward = [is_mine, shape = x.sizes().vec()](
                                const Tensors&, const Tensors& grads,
                                const std::vector<bool>&) -> Tensors {
    const Tensor dx = at::zeros(shape, grads[0].options());
    if (is_mine) dx.narrow(1, 0, 1).copy_(grads[0]);
    return {dx};
  };
  return differentiable({x}, forward, backward)[0];
}

Tensor classify(const Mesh& mesh, const Tensor& x, const Tensor& w, const Tensor& bias,
                const Axes& axes) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    const Tensor y = multiply_rows(in[0], in[1]);
    for (const std::string& axis : axes) raw::all_reduce(y, mesh.comm(axis));
    if (in[2].defined()) y.add_(in[2]);
    return {{y}, {in[0], in[1]}};
  };
  const Backward backward = [](const Tensors& saved, const Tensors& grads,
                               const std::vector<bool>& needs) -> Tensors {
    const Tensor dy = grads[0].contiguous();
    return {multiply_rows(dy, saved[1].t()), multiply_columns(saved[0], dy),
            needs[2] ? ops::sum_rows(dy) : Tensor()};
  };
  return differentiable({x, w, bias}, forward, backward)[0];
}

Tensor label_loss(const Mesh& mesh, const Tensor& logits, const Tensor& labels, double scale,
                  const Layout& activation, int64_t parts) {
  const int64_t samples = labels.size(0);
  const Tensor targets = at::empty({samples, parts}, labels.options());
  targets.fill_(-1);
  targets.narrow(1, 0, 1).copy_(labels.unsqueeze(1));
  const TokenGrid grid{{{activation.dims[0], activation.dims[1], {}}}, samples, parts};
  return cross_entropy(mesh, logits, targets, scale, logits.size(2), grid);
}

}  // namespace kuafu
