// SPDX-License-Identifier: Apache-2.0
//
// Norms over H of the outer stream, whatever axes shard it: whole on a rank, or in halves around an
// all-reduce of each row's moments.
#include "kuafu/parallel/tensor/norms.h"

#include "kuafu/parallel/tensor/layers.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

/// The axes that shard H, over which moments are summed.
struct Shards {
  const Mesh& mesh;
  Axes axes;

  explicit Shards(const TensorParallel& tp)
      : mesh(tp.mesh()), axes(tp.activation(Stream::kOuter).dims[2]) {}
  bool is_whole() const { return mesh.size(axes) == 1; }
  void add_up(const Tensor& moments) const {
    for (const std::string& axis : axes) raw::all_reduce(moments, mesh.comm(axis));
  }
};

ops::NormOut layer_norm_of(const Shards& shards, const Tensors& in, int64_t hidden,
                           double epsilon) {
  if (shards.is_whole()) return ops::layer_norm(in[0], in[1], in[2], epsilon);
  const Tensor moments = ops::norm_moments(in[0]);
  shards.add_up(moments);
  return ops::norm_apply(in[0], moments, in[1], in[2], hidden, epsilon);
}

/// Of a norm's result: zero where only what stops gradients took it.
Tensor gradient_or_zero(const Tensor& dy, const Tensor& like) {
  return dy.defined() ? dy.contiguous() : at::zeros(like.sizes(), like.options());
}

/// `saved` is x, weight, mean, rstd.
ops::NormGrads layer_norm_gradients(const Shards& shards, const Tensors& saved,
                                    const Tensors& grads, int64_t hidden) {
  const Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &rstd = saved[3];
  const Tensor dy = gradient_or_zero(grads[0], x), &residual = grads[1];
  if (shards.is_whole()) return ops::layer_norm_backward(dy, x, mean, rstd, weight, residual);
  const Tensor moments = ops::norm_backward_moments(dy, x, mean, rstd, weight);
  shards.add_up(moments);
  return ops::norm_backward_apply(dy, x, mean, rstd, weight, moments, hidden, residual);
}

ops::RmsOut rms_norm_of(const Shards& shards, const Tensors& in, int64_t hidden, double epsilon) {
  if (shards.is_whole()) return ops::rms_norm(in[0], in[1], epsilon);
  const Tensor moments = ops::rms_moments(in[0]);
  shards.add_up(moments);
  return ops::rms_apply(in[0], moments, in[1], hidden, epsilon);
}

/// `saved` is x, weight, rstd.
ops::RmsGrads rms_norm_gradients(const Shards& shards, const Tensors& saved, const Tensors& grads,
                                 int64_t hidden) {
  const Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
  const Tensor dy = gradient_or_zero(grads[0], x), &residual = grads[1];
  if (shards.is_whole()) return ops::rms_norm_backward(dy, x, rstd, weight, residual);
  const Tensor moments = ops::rms_backward_moments(dy, x, rstd, weight);
  shards.add_up(moments);
  return ops::rms_backward_apply(dy, x, rstd, weight, moments, hidden, residual);
}

}  // namespace

Normed layer_norm_with_input(const TensorParallel& tp, const Tensor& x, const Tensor& weight,
                             const Tensor& bias, int64_t hidden, double epsilon) {
  const Shards shards(tp);
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    const ops::NormOut out = layer_norm_of(shards, in, hidden, epsilon);
    return {{out.y, in[0]}, {in[0], in[1], out.mean, out.rstd}};
  };
  const Backward backward = [shards, hidden](const Tensors& saved, const Tensors& grads,
                                             const std::vector<bool>&) -> Tensors {
    const ops::NormGrads g = layer_norm_gradients(shards, saved, grads, hidden);
    return {g.dx, g.dweight, g.dbias};
  };
  const Tensors out = differentiable({x, weight, bias}, forward, backward);
  return {out[0], out[1]};
}

Normed rms_norm_with_input(const TensorParallel& tp, const Tensor& x, const Tensor& weight,
                           int64_t hidden, double epsilon) {
  const Shards shards(tp);
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    const ops::RmsOut out = rms_norm_of(shards, in, hidden, epsilon);
    return {{out.y, in[0]}, {in[0], in[1], out.rstd}};
  };
  const Backward backward = [shards, hidden](const Tensors& saved, const Tensors& grads,
                                             const std::vector<bool>&) -> Tensors {
    const ops::RmsGrads g = rms_norm_gradients(shards, saved, grads, hidden);
    return {g.dx, g.dweight};
  };
  const Tensors out = differentiable({x, weight}, forward, backward);
  return {out[0], out[1]};
}

Tensor layer_norm(const TensorParallel& tp, const Tensor& x, const Tensor& weight,
                  const Tensor& bias, int64_t hidden, double epsilon) {
  return layer_norm_with_input(tp, x, weight, bias, hidden, epsilon).y;
}

Tensor rms_norm(const TensorParallel& tp, const Tensor& x, const Tensor& weight, int64_t hidden,
                double epsilon) {
  return rms_norm_with_input(tp, x, weight, hidden, epsilon).y;
}

}  // namespace kuafu
