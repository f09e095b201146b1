// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/layers.h"

#include "kuafu/base/philox.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

constexpr double kNormEpsilon = 1e-5;

Stream input_of(Role r) { return r == Role::kExpand ? Stream::kOuter : Stream::kInner; }
Stream output_of(Role r) { return r == Role::kExpand ? Stream::kInner : Stream::kOuter; }

/// The layout of a vector added to the last dim of an activation.
Layout last_dim(const Context& ctx, Stream s) { return {{ctx.activation(s).dims[2]}}; }

}  // namespace

Layout Context::activation(Stream s) const {
  Layout layout = tensor.activation(s);
  if (mesh.size("sequence") > 1) layout.dims[1].insert(layout.dims[1].begin(), "sequence");
  return layout;
}

Param Context::param(const std::string& name, const Shape& global, const Layout& layout,
                     Stream meets, Init init) const {
  return params.make(name, global, layout, grad_axes(activation(meets), layout), init);
}

Linear::Linear(const Context& ctx, const std::string& name, int64_t in, int64_t out, Role role,
               double std)
    : ctx_(ctx),
      role_(role),
      weight_(add(ctx.param(name + ".weight", {in, out}, ctx.tensor.weight(role), input_of(role),
                            {.std = std}))),
      bias_(add(ctx.param(name + ".bias", {out}, last_dim(ctx, output_of(role)), output_of(role),
                          {.kind = Init::Kind::kZeros}))) {}

Tensor Linear::operator()(const Tensor& x) const {
  return linear(ctx_.tensor, x, weight_.value, bias_.value, role_);
}

LayerNorm::LayerNorm(const Context& ctx, const std::string& name, int64_t hidden)
    : ctx_(ctx),
      hidden_(hidden),
      weight_(add(ctx.param(name + ".weight", {hidden}, last_dim(ctx, Stream::kOuter),
                            Stream::kOuter, {.kind = Init::Kind::kOnes}))),
      bias_(add(ctx.param(name + ".bias", {hidden}, last_dim(ctx, Stream::kOuter), Stream::kOuter,
                          {.kind = Init::Kind::kZeros}))) {}

Tensor LayerNorm::operator()(const Tensor& x) const {
  return layer_norm(ctx_.tensor, x, weight_.value, bias_.value, hidden_, kNormEpsilon);
}

Attention::Attention(const Context& ctx, const std::string& name, const ModelPlan& plan,
                     double out_std)
    : ctx_(ctx),
      head_dim_(plan.hidden / plan.heads),
      qkv_(ctx, name + ".qkv", plan.hidden, 3 * plan.hidden, Role::kExpand, 0.02),
      out_(ctx, name + ".out", plan.hidden, plan.hidden, Role::kContract, out_std) {
  add_child(qkv_);
  add_child(out_);
}

Tensor Attention::operator()(const Tensor& x, Mask mask) const {
  const Tensor y = qkv_(x);  // (B, S, N 3 D): columns of one head lie together in every scheme
  const int64_t b = y.size(0), s = y.size(1), heads = y.size(2) / (3 * head_dim_);
  const Tensor split = y.view({b, s, heads, 3, head_dim_}).transpose(1, 2);  // (B, N, S, 3, D)
  const Tensor merged =
      ctx_.attention.attend(split.select(3, 0), split.select(3, 1), split.select(3, 2), mask);
  return out_(merged.transpose(1, 2).reshape({b, s, heads * head_dim_}));
}

Mlp::Mlp(const Context& ctx, const std::string& name, int64_t hidden, double out_std)
    : up_(ctx, name + ".up", hidden, 4 * hidden, Role::kExpand, 0.02),
      down_(ctx, name + ".down", 4 * hidden, hidden, Role::kContract, out_std) {
  add_child(up_);
  add_child(down_);
}

Tensor Mlp::operator()(const Tensor& x) const { return down_(gelu(up_(x))); }

Tensor gelu(const Tensor& x) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    return {{ops::gelu(in[0])}, {in[0]}};
  };
  const Backward backward = [](const Tensors& saved, const Tensors& grads,
                               const std::vector<bool>&) -> Tensors {
    return {ops::gelu_backward(grads[0], saved[0])};
  };
  return differentiable({x}, forward, backward)[0];
}

}  // namespace kuafu
