// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/layers.h"

#include "kuafu/meter/book.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

constexpr double kNormEpsilon = 1e-5;

Stream input_of(Role r) { return r == Role::kExpand ? Stream::kOuter : Stream::kInner; }
Stream output_of(Role r) { return r == Role::kExpand ? Stream::kInner : Stream::kOuter; }

/// The layout of a vector added to the last dim of an activation.
Layout last_dim(const Context& ctx, Stream s) { return {{ctx.activation(s).dims[2]}}; }

/// (B, S, N 3 D), the columns of one head together in every scheme -> q, k, v (B, N, S, D) over
/// memory (B, S, N, D), in which attention's output needs no copy to merge. Copies: autograd of
/// three strided views would add up three zero-filled gradients of the whole.
Tensors split_heads(const Tensor& qkv, int64_t head_dim) {
  const int64_t heads = qkv.size(2) / (3 * head_dim);
  const auto parts = [heads, head_dim](const Tensor& t) {
    return t.view({t.size(0), t.size(1), heads, 3, head_dim}).permute({3, 0, 2, 1, 4});
  };
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    const Tensor p = parts(in[0]);
    const auto copy = [&p](int64_t i) { return p[i].transpose(1, 2).contiguous().transpose(1, 2); };
    return {{copy(0), copy(1), copy(2)}, {}};
  };
  const Backward backward = [parts, shape = qkv.sizes().vec()](
                                const Tensors&, const Tensors& grads,
                                const std::vector<bool>&) -> Tensors {
    const Tensor whole = at::empty(shape, grads[0].options());
    const Tensor p = parts(whole);
    for (int64_t i = 0; i < 3; ++i) p[i].copy_(grads[static_cast<size_t>(i)]);
    return {whole};
  };
  return differentiable({qkv}, forward, backward);
}

/// (B, N, S, D) -> (B, S, N D)
Tensor merge_heads(const Tensor& x) {
  const int64_t b = x.size(0), n = x.size(1), s = x.size(2), d = x.size(3);
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{in[0].transpose(1, 2).reshape({b, s, n * d})}, {}};
  };
  const Backward backward = [b, n, s, d](const Tensors&, const Tensors& grads,
                                         const std::vector<bool>&) -> Tensors {
    return {grads[0].contiguous().view({b, s, n, d}).transpose(1, 2)};
  };
  return differentiable({x}, forward, backward)[0];
}

}  // namespace

Layout Context::activation(Stream s) const {
  Layout layout = on_mesh(tensor.activation(s));
  if (mesh.size("sequence") > 1) layout.dims[1].insert(layout.dims[1].begin(), "sequence");
  return layout;
}

Layout Context::weight(Role r) const { return on_mesh(tensor.weight(r)); }

Layout Context::on_mesh(Layout layout) const {
  for (Axes& axes : layout.dims) {
    Axes out;
    for (const std::string& axis : axes) {
      const auto found = parts.find(axis);
      const Axes made_of = found == parts.end() ? Axes{axis} : found->second;
      out.insert(out.end(), made_of.begin(), made_of.end());
    }
    axes = out;
  }
  return layout;
}

Param Context::param(const std::string& name, const Shape& global, const Layout& layout,
                     Stream meets, Init init) const {
  const CategoryScope scope(Category::kParameter);
  const Layout own = on_mesh(layout);
  return params.make(name, global, own, grad_axes(activation(meets), own), init);
}

Linear::Linear(const Context& ctx, const std::string& name, int64_t in, int64_t out, Role role,
               double std)
    : ctx_(ctx),
      role_(role),
      weight_(add(ctx.param(name + ".weight", {in, out}, ctx.tensor.weight(role), input_of(role),
                            {.std = std}))),
      bias_(add(ctx.param(name + ".bias", {out}, last_dim(ctx, output_of(role)), output_of(role),
                          {.kind = Init::Kind::kZeros}))) {
  // Vocabularies are padded; the widths of a layer divide.
  local_shape(weight_.layout, weight_.global, ctx.mesh, weight_.name);
}

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
  const Tensors heads = split_heads(qkv_(x), head_dim_);
  return out_(merge_heads(ctx_.attention.attend(heads[0], heads[1], heads[2], mask)));
}

Mlp::Mlp(const Context& ctx, const std::string& name, const ModelPlan& plan, int64_t width,
         double out_std)
    : up_(ctx, name + ".up", plan.hidden, width, Role::kExpand, 0.02),
      down_(ctx, name + ".down", width, plan.hidden, Role::kContract, out_std) {
  add_child(up_);
  add_child(down_);
}

Tensor Mlp::operator()(const Tensor& x) const { return down_(kuafu::gelu(up_(x))); }

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
