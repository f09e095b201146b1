// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/layers.h"

#include <ATen/ATen.h>

#include "kuafu/base/philox.h"
#include "kuafu/meter/book.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

constexpr double kNormEpsilon = 1e-5;

Stream output_of(Role r) { return r == Role::kExpand ? Stream::kInner : Stream::kOuter; }

/// The layout of a vector added to the last dim of an activation.
Layout last_dim(const Context& ctx, Stream s) { return {{ctx.activation(s).dims[2]}}; }

}  // namespace

Stream stream_of(RowUse use) {
  switch (use) {
    case RowUse::kContract:
    case RowUse::kInnerWidth:
    case RowUse::kFromInner:
    case RowUse::kInnerTokens:
    case RowUse::kInnerGain:
    case RowUse::kLogits:
    case RowUse::kSharedHeadsBias:
      return Stream::kInner;
    default:
      return Stream::kOuter;
  }
}

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

Param Context::param(const std::string& name, const Shape& global, const Layout& layout, RowUse use,
                     Init init) const {
  const CategoryScope scope(Category::kParameter);
  const Layout own = on_mesh(layout);
  Axes summed = grad_axes(activation(stream_of(use)), own);
  if (use == RowUse::kOuterGain ||
      use == RowUse::kInnerGain) {  // each rank has some of the columns
    const Axes columns = activation(stream_of(use)).dims[2];
    summed.insert(summed.end(), columns.begin(), columns.end());
  }
  Param p = params.make(name, global, own, summed, init);
  p.use = use;
  return p;
}

Linear::Linear(const Context& ctx, const std::string& name, int64_t in, int64_t out, Role role,
               double std, WithBias with_bias, LayerSplit layers)
    : ctx_(ctx),
      role_(role),
      weight_(add(ctx.param(name + ".weight", {in, out}, ctx.weight(role),
                            role == Role::kExpand ? RowUse::kExpand : RowUse::kContract,
                            {.std = std}))) {
  // Vocabularies are padded; the widths of a layer divide.
  local_shape(weight_.layout, weight_.global, ctx.mesh, weight_.name);
  weight_.layers = layers;
  if (with_bias == WithBias::kNo) return;
  bias_ = &add(ctx.param(name + ".bias", {out}, last_dim(ctx, output_of(role)),
                         role == Role::kExpand ? RowUse::kInnerWidth : RowUse::kOuterWidth,
                         {.kind = Init::Kind::kZeros}));
  bias_->layers = layers;
}

Tensor Linear::operator()(const Tensor& x) const {
  return linear(ctx_.tensor, x, weight_.value, bias_ != nullptr ? bias_->value : Tensor(), role_);
}

Norm::Norm(const Context& ctx, const std::string& name, const ModelPlan& plan)
    : ctx_(ctx),
      hidden_(plan.hidden),
      is_rms_(plan.norm == "rms"),
      weight_(add(ctx.param(name + ".weight", {hidden_}, last_dim(ctx, Stream::kOuter),
                            RowUse::kOuterWidth, {.kind = Init::Kind::kOnes}))) {
  if (is_rms_) return;
  if (plan.bias) {
    bias_ = &add(ctx.param(name + ".bias", {hidden_}, last_dim(ctx, Stream::kOuter),
                           RowUse::kOuterWidth, {.kind = Init::Kind::kZeros}));
  } else {
    no_bias_ = &add_zeros(weight_);
  }
}

Tensor Norm::operator()(const Tensor& x) const { return with_input(x).y; }

Normed Norm::with_input(const Tensor& x) const {
  if (is_rms_) return rms_norm_with_input(ctx_.tensor, x, weight_.value, hidden_, kNormEpsilon);
  const Tensor& bias = bias_ != nullptr ? bias_->value : *no_bias_;
  return layer_norm_with_input(ctx_.tensor, x, weight_.value, bias, hidden_, kNormEpsilon);
}

Mlp::Mlp(const Context& ctx, const std::string& name, const ModelPlan& plan, int64_t width,
         double out_std)
    : is_gated_(plan.mlp == "swiglu"),
      up_(ctx, name + ".up", plan.hidden, is_gated_ ? 2 * width : width, Role::kExpand, 0.02,
          bias_of(plan), LayerSplit{.parts = is_gated_ ? 2 : 1}),
      down_(ctx, name + ".down", width, plan.hidden, Role::kContract, out_std, bias_of(plan)) {
  add_child(up_);
  add_child(down_);
}

Tensor Mlp::operator()(const Tensor& x) const {
  return down_(is_gated_ ? kuafu::swiglu(up_(x)) : kuafu::gelu(up_(x)));
}

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

Tensor swiglu(const Tensor& x) {
  const Forward forward = [](const Tensors& in) -> ForwardResult {
    return {{ops::swiglu(in[0])}, {in[0]}};
  };
  const Backward backward = [](const Tensors& saved, const Tensors& grads,
                               const std::vector<bool>&) -> Tensors {
    return {ops::swiglu_backward(grads[0], saved[0])};
  };
  return differentiable({x}, forward, backward)[0];
}

Tensor drop(const Context& ctx, const Tensor& x, const std::string& site, const Side& side) {
  const Layout outer = ctx.activation(Stream::kOuter);
  return dropout(ctx.mesh, x,
                 {.p = side.is_training ? ctx.dropout : 0,
                  .seed = ctx.params.seed,
                  .site = hash_name(site),
                  .step = side.step,
                  .first_sample = side.first_sample},
                 x.size(2) * ctx.mesh.size(outer.dims[2]), side.grid(outer));
}

WithBias bias_of(const ModelPlan& plan) { return plan.bias ? WithBias::kYes : WithBias::kNo; }

void check_block(const Context& ctx, const ModelPlan& plan) {
  const Axes inner = ctx.activation(Stream::kInner).dims[2];
  const Layout expand = ctx.weight(Role::kExpand), contract = ctx.weight(Role::kContract);
  local_shape(Layout{{inner}}, {plan.heads}, ctx.mesh, "model.heads");
  local_shape(Layout{{inner}}, {plan.ffn_width()}, ctx.mesh, "model.ffn");
  for (const int64_t width : {plan.hidden, plan.ffn_width()}) {
    local_shape(expand, {plan.hidden, width}, ctx.mesh, "weights (model.hidden, model.ffn)");
    local_shape(contract, {width, plan.hidden}, ctx.mesh, "weights (model.ffn, model.hidden)");
  }
}

}  // namespace kuafu
