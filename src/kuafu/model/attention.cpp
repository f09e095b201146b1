// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>

#include "kuafu/base/suggest.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/model/inference.h"
#include "kuafu/model/init.h"
#include "kuafu/model/key_value_cache.h"
#include "kuafu/model/layers.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/heads.h"

namespace kuafu {
namespace {

/// Copies: autograd of strided views would add up zero-filled gradients of the whole.
Tensors split_heads(const Tensor& whole, int64_t head_dim, int64_t parts) {
  const Forward forward = [=](const Tensors& in) -> ForwardResult {
    return {ops::split_heads(in[0], head_dim, parts), {}};
  };
  const Backward backward = [](const Tensors&, const Tensors& grads,
                               const std::vector<bool>&) -> Tensors {
    return {ops::join_heads(grads)};
  };
  return differentiable({whole}, forward, backward);
}

/// (B, S, N D) -> (B, N, S, D), a view.
Tensor view_heads(const Tensor& x, int64_t head_dim) {
  const int64_t b = x.size(0), s = x.size(1), n = x.size(2) / head_dim;
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{in[0].view({b, s, n, head_dim}).transpose(1, 2)}, {}};
  };
  const Backward backward = [b, s, width = x.size(2)](const Tensors&, const Tensors& grads,
                                                      const std::vector<bool>&) -> Tensors {
    return {grads[0].transpose(1, 2).reshape({b, s, width})};
  };
  return differentiable({x}, forward, backward)[0];
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

Tensor to_tensor(std::vector<int64_t> mine, at::Device device) {
  const auto count = static_cast<int64_t>(mine.size());
  const Tensor positions = at::empty({count}, at::TensorOptions(at::kLong).device(device));
  const OneOpScope load("load", positions);
  if (!device.is_meta()) positions.copy_(at::from_blob(mine.data(), {count}, at::kLong));
  return positions;
}

/// x (B, N, S, D) turned by the positions of its tokens.
Tensor rotate(const Tensor& x, const Tensor& positions, double base) {
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{ops::rope(in[0], positions, base, false)}, {}};
  };
  const Backward backward = [positions, base](const Tensors&, const Tensors& grads,
                                              const std::vector<bool>&) -> Tensors {
    return {ops::rope(grads[0], positions, base, true)};
  };
  return differentiable({x}, forward, backward)[0];
}

/// The positions of a side's tokens; behind a cache one of each sample.
std::vector<int64_t> positions_of(const Mesh& mesh, const TokenGrid& grid, const Side& side) {
  return is_behind_cache(side) ? positions_behind_cache(mesh, grid, side)
                               : local_positions(mesh, grid);
}

/// Columns of the last dim; the gradient is zero elsewhere.
Tensor cut(const Tensor& whole, const Columns& columns) {
  const auto [first, count] = columns;
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{in[0].narrow(-1, first, count).contiguous()}, {}};
  };
  const Backward backward = [first, count, shape = whole.sizes().vec()](
                                const Tensors&, const Tensors& grads,
                                const std::vector<bool>&) -> Tensors {
    const Tensor dwhole = at::zeros(shape, grads[0].options());
    dwhole.narrow(-1, first, count).copy_(grads[0]);
    return {dwhole};
  };
  return differentiable({whole}, forward, backward)[0];
}

/// Appends the axes that are not there yet.
void sum_also_over(Param& p, const Axes& axes) {
  for (const std::string& axis : axes) {
    const bool is_there = std::count(p.grad_axes.begin(), p.grad_axes.end(), axis) > 0;
    if (!is_there) p.grad_axes.push_back(axis);
  }
}

/// Columns of the real heads behind my part of the columns of a virtual weight that has one head
/// (k, v) for each of the `ranks`: rank r has head r kv_heads / ranks.
Columns real_columns(const Context& ctx, const Axes& axes, int64_t ranks, const ModelPlan& plan) {
  const int64_t pair = 2 * plan.hidden / plan.heads, parts = ctx.mesh.size(axes);
  if (parts % ranks != 0 || pair * ranks % parts != 0) {
    throw Refused(text("model.kv_heads = ", plan.kv_heads, ": a key-value head of ", pair,
                       " columns on each of ", ranks, " ranks cannot be cut by the ", parts,
                       " ranks of ", to_string(axes), "; nearest: model.kv_heads = ", plan.heads));
  }
  const int64_t count = pair * ranks / parts, at = ctx.mesh.coord(axes) * count;
  return {(at / pair) * plan.kv_heads / ranks * pair + at % pair, count};
}

/// True where heads are replicated. Throws Refused where neither number divides the other.
bool is_replicated(const Context& ctx, const ModelPlan& plan) {
  const Axes axes = ctx.activation(Stream::kInner).dims[2];
  const int64_t ranks = ctx.mesh.size(axes), heads = plan.kv_heads;
  if (heads % ranks == 0) return false;
  if (ranks % heads == 0) return true;
  std::vector<int64_t> legal;
  for (int64_t n = 1; n <= plan.heads; ++n) {
    if (plan.heads % n == 0 && (n % ranks == 0 || ranks % n == 0)) legal.push_back(n);
  }
  std::stable_sort(legal.begin(), legal.end(), [heads](int64_t a, int64_t b) {
    return std::llabs(a - heads) < std::llabs(b - heads);
  });
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min<size_t>(2, legal.size()); ++i) words.push_back(text(legal[i]));
  throw Refused(text("model.kv_heads = ", heads, " and the ", ranks, " ranks of ", to_string(axes),
                     ": neither divides the other; nearest: kv_heads = ", join_or(words)));
}

}  // namespace

KeyValues::KeyValues(const Context& ctx, const std::string& name, const ModelPlan& plan)
    : ctx_(ctx), weight_(add([&] {
        const int64_t width = 2 * plan.kv_heads * (plan.hidden / plan.heads);
        const Layout expand = ctx.weight(Role::kExpand);
        const Init init = {.std = kStd};
        if (!is_replicated(ctx, plan)) {
          local_shape(expand, {plan.hidden, width}, ctx.mesh, "key-value weight");
          return ctx.param(name + ".weight", {plan.hidden, width}, expand, RowUse::kExpand, init);
        }
        const int64_t ranks = ctx.mesh.size(ctx.activation(Stream::kInner).dims[2]);
        weight_columns_ = real_columns(ctx, expand.dims[1], ranks, plan);
        Param p = ctx.param(name + ".weight", {plan.hidden, width}, Layout{{expand.dims[0], {}}},
                            RowUse::kSharedHeads, init);
        sum_also_over(p, expand.dims[1]);
        return p;
      }())) {
  weight_.layers = {.parts = 2, .width = plan.hidden / plan.heads};
  if (!plan.bias) return;
  const Init zeros = {.kind = Init::Kind::kZeros};
  const Axes axes = ctx.activation(Stream::kInner).dims[2];
  const bool is_shared = weight_columns_.has_value();
  bias_ = &add(ctx.param(name + ".bias", {weight_.global[1]}, Layout{{is_shared ? Axes{} : axes}},
                         is_shared ? RowUse::kSharedHeadsBias : RowUse::kInnerWidth, zeros));
  bias_->layers = weight_.layers;
  if (!is_shared) return;
  bias_columns_ = real_columns(ctx, axes, ctx.mesh.size(axes), plan);
  sum_also_over(*bias_, axes);
}

Tensor KeyValues::operator()(const Tensor& x) const {
  const Tensor bias = bias_ == nullptr ? Tensor() : bias_->value;
  if (!weight_columns_) return linear(ctx_.tensor, x, weight_.value, bias, Role::kExpand);
  return linear(ctx_.tensor, x, cut(weight_.value, *weight_columns_),
                bias.defined() ? cut(bias, *bias_columns_) : bias, Role::kExpand);
}

Attention::Attention(const Context& ctx, const std::string& name, const ModelPlan& plan,
                     double out_std)
    : ctx_(ctx),
      head_dim_(plan.hidden / plan.heads),
      out_(ctx, name + ".out", plan.hidden, plan.hidden, Role::kContract, out_std, bias_of(plan)) {
  const int64_t h = plan.hidden;
  if (plan.positions == "rotary") rotary_base_ = plan.rotary_base;
  if (plan.num_kv_heads() == plan.heads) {
    add_child(qkv_.emplace(ctx, name + ".qkv", h, 3 * h, Role::kExpand, kStd, bias_of(plan),
                           LayerSplit{.parts = 3, .width = head_dim_}));
  } else {
    add_child(q_.emplace(ctx, name + ".q", h, h, Role::kExpand, kStd, bias_of(plan)));
    add_child(kv_.emplace(ctx, name + ".kv", plan));
  }
  add_child(out_);
}

Tensors Attention::heads(const Tensor& x) const {
  if (qkv_) return split_heads((*qkv_)(x), head_dim_, 3);
  const Tensors in = fan_out(x, 2);
  const Tensor q = view_heads((*q_)(in[0]), head_dim_);
  const Tensors kv = split_heads((*kv_)(in[1]), head_dim_, 2);
  return {q, kv[0], kv[1]};
}

Tensor Attention::operator()(const Tensor& x, Mask mask, const Side& side) const {
  Tensors qkv = heads(x);
  const TokenGrid grid = side.grid(ctx_.activation(Stream::kInner));
  if (rotary_base_) {
    const Tensor positions = to_tensor(positions_of(ctx_.mesh, grid, side), x.device());
    const bool is_one_each = is_behind_cache(side);  // S is 1: samples stand as places
    for (size_t i : {0, 1}) {
      const Tensor places = is_one_each ? qkv[i].transpose(0, 2) : qkv[i];
      const Tensor turned = rotate(places, positions, *rotary_base_);
      qkv[i] = is_one_each ? turned.transpose(0, 2) : turned;
    }
  }
  if (side.first.defined()) {
    KUAFU_REQUIRE(
        mask == Mask::kCausal,
        "data.document_mask = true keeps documents apart in causal attention, and a block of "
        "the model attends to all positions; set document_mask = false");
    const int64_t sample = local_slice(ctx_.mesh, grid).offset[0];
    const Tensor first = side.first.narrow(0, sample, qkv[0].size(0));
    return out_(merge_heads(ctx_.attention.attend_documents(qkv[0], qkv[1], qkv[2], first)));
  }
  if (side.inference == nullptr || side.inference->cache == nullptr) {
    return out_(merge_heads(ctx_.attention.attend(qkv[0], qkv[1], qkv[2], mask)));
  }
  std::vector<int64_t> positions;
  if (is_behind_cache(side)) positions = positions_behind_cache(ctx_.mesh, grid, side);
  return out_(merge_heads(
      side.inference->cache->attend(ctx_.attention, {this, side.first_sample}, qkv, positions)));
}

}  // namespace kuafu
