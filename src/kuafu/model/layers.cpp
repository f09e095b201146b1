// SPDX-License-Identifier: Apache-2.0
#include "kuafu/model/layers.h"

#include <ATen/ATen.h>

#include "kuafu/base/philox.h"
#include "kuafu/meter/book.h"
#include "kuafu/model/init.h"
#include "kuafu/parallel/tensor/relayout.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

Stream output_of(Role r) { return r == Role::kExpand ? Stream::kInner : Stream::kOuter; }

/// An activation's ops, and what its backward reads.
struct ActivationOps {
  Tensor (*forward)(const Tensor& x);
  Tensor (*backward)(const Tensor& dy, const Tensor& kept);
  enum class Keeps : uint8_t { kInput, kOutput } keeps = Keeps::kInput;
};

ActivationOps ops_of(Activation kind) {
  switch (kind) {
    case Activation::kGeluExact:
      return {ops::gelu_exact, ops::gelu_exact_backward};
    case Activation::kRelu:
      return {ops::relu, ops::relu_backward, ActivationOps::Keeps::kOutput};
    case Activation::kSwiglu:
      return {ops::swiglu, ops::swiglu_backward};
    default:
      return {ops::gelu, ops::gelu_backward};
  }
}

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
      epsilon_(plan.norm_epsilon),
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
  if (is_rms_) return rms_norm_with_input(ctx_.tensor, x, weight_.value, hidden_, epsilon_);
  const Tensor& bias = bias_ != nullptr ? bias_->value : *no_bias_;
  return layer_norm_with_input(ctx_.tensor, x, weight_.value, bias, hidden_, epsilon_);
}

Activation activation_of(const ModelPlan& plan) {
  if (plan.mlp == "gelu_exact") return Activation::kGeluExact;
  if (plan.mlp == "relu") return Activation::kRelu;
  return plan.mlp == "swiglu" ? Activation::kSwiglu : Activation::kGelu;
}

int64_t fused_columns(Activation kind) { return kind == Activation::kSwiglu ? 2 : 1; }

Tensor activate(const Tensor& x, Activation kind) {
  const ActivationOps own = ops_of(kind);
  const Forward forward = [&own](const Tensors& in) -> ForwardResult {
    const Tensor y = own.forward(in[0]);
    return {{y}, {own.keeps == ActivationOps::Keeps::kInput ? in[0] : y}};
  };
  const Backward backward = [own](const Tensors& saved, const Tensors& grads,
                                  const std::vector<bool>&) -> Tensors {
    return {own.backward(grads[0], saved[0])};
  };
  return differentiable({x}, forward, backward)[0];
}

Mlp::Mlp(const Context& ctx, const std::string& name, const ModelPlan& plan, int64_t width,
         double out_std)
    : activation_(activation_of(plan)),
      up_(ctx, name + ".up", plan.hidden, fused_columns(activation_) * width, Role::kExpand, 0.02,
          bias_of(plan), LayerSplit{.parts = fused_columns(activation_)}),
      down_(ctx, name + ".down", width, plan.hidden, Role::kContract, out_std, bias_of(plan)) {
  add_child(up_);
  add_child(down_);
}

Tensor Mlp::operator()(const Tensor& x) const { return down_(activate(up_(x), activation_)); }

Projection::Projection(const Context& ctx, const std::string& name, const ModelPlan& plan,
                       int64_t in, int64_t out)
    : ctx_(ctx), expand_([&] {
        for (const Stream s : {Stream::kOuter, Stream::kInner}) {
          local_shape(Layout{{ctx.activation(s).dims[2]}}, {plan.embedding}, ctx.mesh,
                      "model.embedding");
        }
        return Linear(ctx, name, in, out, Role::kExpand, kStd, WithBias::kNo);
      }()) {
  add_child(expand_);
}

Tensor Projection::operator()(const Tensor& x) const {
  return relayout(ctx_.mesh, expand_(x), ctx_.activation(Stream::kInner),
                  ctx_.activation(Stream::kOuter));
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
