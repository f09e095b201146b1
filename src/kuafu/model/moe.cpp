// SPDX-License-Identifier: Apache-2.0
//
// Mixture of experts.      [Shazeer et al., arXiv 1701.06538; GShard 2006.16668; Switch 2101.03961]
//
//   x (B, S, H) -> logits = x W_r (E) -> gates, slots (E, B, C) -> dispatch -> up, activation, down
//     -> combine: y[b, s] = sum of gate * expert(x[b, s]) over the slots that hold the token
//
// A sample is a group: capacity and losses are its own, so no layout changes the outcome. Logits
// are joined over the axes that shard H and collected over those that shard the sequence: every
// rank that holds a part of a sample routes the whole sample, in f32 at least, and comes to the
// same decisions. FLOPs of the experts count slots, empty ones too: E C rows a sample, as they are
// computed.

#include "kuafu/model/moe.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "kuafu/base/philox.h"
#include "kuafu/mesh/parts.h"
#include "kuafu/meter/op_trace.h"
#include "kuafu/model/init.h"
#include "kuafu/parallel/expert/interface.h"
#include "kuafu/tensor/collectives.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/weight_grads.h"

namespace kuafu {
namespace {

Tensor as_rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// Statistics of half-precision models are f32.
at::ScalarType statistics(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Layout expert_weight(const Context& ctx, Role role) {
  Layout layout{{{"expert"}}};
  for (const Axes& axes : ctx.weight(role).dims) layout.dims.push_back(axes);
  return layout;
}

/// SwiGLU's gates and values are interleaved columns of the first linear.
int64_t fused_columns(const ModelPlan& plan) { return fused_columns(activation_of(plan)); }

Tensor to_tensor(const std::vector<int64_t>& numbers, at::Device device) {
  const auto count = static_cast<int64_t>(numbers.size());
  const Tensor t = at::empty({count}, at::TensorOptions(at::kLong).device(device));
  const OneOpScope load("load", t);
  if (!device.is_meta()) {
    t.copy_(at::from_blob(const_cast<int64_t*>(numbers.data()), {count}, at::kLong));
  }
  return t;
}

/// (B, R, E) -> (B, |from|, E): row i is row from[i] of x, zero where that is -1. No row is taken
/// twice.
Tensor take_rows(const Tensor& x, const std::vector<int64_t>& from) {
  const auto taken = [](const Tensor& t, const std::vector<int64_t>& rows) {
    const auto count = static_cast<int64_t>(rows.size());
    const Tensor places = to_tensor(rows, t.device()).view({1, 1, -1});
    return ops::take_slots(t, places.expand({t.size(0), 1, count}))
        .view({t.size(0), count, t.size(2)});
  };
  std::vector<int64_t> back(static_cast<size_t>(x.size(1)), -1);
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] >= 0) back[static_cast<size_t>(from[i])] = static_cast<int64_t>(i);
  }
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    return {{taken(in[0], from)}, {}};
  };
  const Backward backward = [taken, back](const Tensors&, const Tensors& grads,
                                          const std::vector<bool>&) -> Tensors {
    return {taken(grads[0].contiguous(), back)};
  };
  return differentiable({x}, forward, backward)[0];
}

/// 0, 1, ... count - 1, then -1 up to `length`.
std::vector<int64_t> first_rows(int64_t count, int64_t length) {
  std::vector<int64_t> rows(static_cast<size_t>(length), -1);
  std::iota(rows.begin(), rows.begin() + count, int64_t{0});
  return rows;
}

/// Where position 0, 1, ... of a sample lies among the parts of `ranks` ranks, each padded to the
/// longest: the place that holds position s holds it after `order`, or s itself without one.
std::vector<int64_t> padded_places(int64_t sequence, int64_t ranks,
                                   const std::vector<int64_t>* order) {
  const int64_t longest = nth_part(sequence, ranks, 0).extent;
  std::vector<int64_t> rows(static_cast<size_t>(sequence));
  for (int64_t r = 0; r < ranks; ++r) {
    const Part part = nth_part(sequence, ranks, r);
    for (int64_t i = 0; i < part.extent; ++i) {
      const auto place = static_cast<size_t>(part.offset + i);
      const int64_t position = order == nullptr ? part.offset + i : (*order)[place];
      rows[static_cast<size_t>(position)] = r * longest + i;
    }
  }
  return rows;
}

/// y[e] = x[e] w[e] + bias[e], written to where the stack has it.
Tensor stacked_products(const TensorParallel& tp, const Tensors& in, Role role) {
  Tensor y;
  for (int64_t e = 0; e < in[0].size(0); ++e) {
    const Tensor part = tp.forward(in[0][e], in[1][e], role);
    if (!y.defined()) {
      Shape shape = shape_of(part);
      shape.insert(shape.begin(), in[0].size(0));
      y = at::empty(shape, part.options());
    }
    Tensor place = y[e];
    if (in[2].defined()) {
      at::add_out(place, part, in[2][e]);
    } else {
      place.copy_(part);
    }
  }
  return y;
}

Tensors stacked_gradients(const TensorParallel& tp, const Tensors& saved, const Tensor& dy,
                          Role role) {
  const Tensor dx = at::empty(saved[0].sizes(), saved[0].options());
  const Tensor dw = at::empty(saved[1].sizes(), saved[1].options());
  for (int64_t e = 0; e < saved[0].size(0); ++e) {
    const LinearGrads g = tp.backward(saved[0][e], saved[1][e], dy[e], role);
    dx[e].copy_(g.dx);
    dw[e].copy_(g.dw);
  }
  return {dx, dw};
}

/// Those of the inputs alone.
Tensor stacked_input_gradients(const TensorParallel& tp, const Tensors& saved, const Tensor& dy,
                               Role role) {
  const Tensor dx = at::empty(saved[0].sizes(), saved[0].options());
  for (int64_t e = 0; e < dx.size(0); ++e) {
    dx[e].copy_(tp.input_grad(dy[e], saved[1][e], role));
  }
  return dx;
}

/// Those of the weights alone; `like` has their shape.
Tensor stacked_weight_gradients(const TensorParallel& tp, const Tensor& x, const Tensor& dy,
                                const Tensor& like, Role role) {
  const Tensor dw = at::empty(like.sizes(), like.options());
  for (int64_t e = 0; e < x.size(0); ++e) dw[e].copy_(tp.weight_grad(x[e], dy[e], role));
  return dw;
}

}  // namespace

bool is_mixture(const ModelPlan& plan, int64_t index) {
  return plan.has_mixtures() && (index + 1) % plan.moe_every == 0;
}

int64_t num_mixtures(const ModelPlan& plan) {
  return plan.has_mixtures() ? plan.layers / plan.moe_every : 0;
}

ExpertLinear::ExpertLinear(const Context& ctx, const std::string& name, const ModelPlan& plan,
                           Role role, double std)
    : ctx_(ctx),
      role_(role),
      weight_(add(
          ctx.param(name + ".weight",
                    role == Role::kExpand
                        ? Shape{plan.experts, plan.hidden, fused_columns(plan) * plan.ffn_width()}
                        : Shape{plan.experts, plan.ffn_width(), plan.hidden},
                    expert_weight(ctx, role),
                    role == Role::kExpand ? RowUse::kExpand : RowUse::kContract, {.std = std}))) {
  weight_.layers = {.is_stacked = true, .parts = role == Role::kExpand ? fused_columns(plan) : 1};
  if (!plan.bias) return;
  const Stream out = role == Role::kExpand ? Stream::kInner : Stream::kOuter;
  bias_ = &add(ctx.param(name + ".bias", {plan.experts, weight_.global[2]},
                         Layout{{{"expert"}, ctx.activation(out).dims[2]}},
                         role == Role::kExpand ? RowUse::kInnerWidth : RowUse::kOuterWidth,
                         {.kind = Init::Kind::kZeros}));
  bias_->layers = weight_.layers;
}

Tensor ExpertLinear::operator()(const Tensor& x) const {
  const Forward forward = [this](const Tensors& in) -> ForwardResult {
    return {{stacked_products(ctx_.tensor, in, role_)}, {in[0], in[1]}};
  };
  const Backward backward = [&tp = ctx_.tensor, role = role_](
                                const Tensors& saved, const Tensors& grads,
                                const std::vector<bool>& needs) -> Tensors {
    const Tensor dy = grads[0].contiguous();
    Tensors g;
    if (WeightGrads* later = weight_grads_for(saved[1])) {
      later->add(saved[1], [&tp, role, dy, x = saved[0].detach(), w = saved[1].detach()] {
        return stacked_weight_gradients(tp, x, dy, w, role);
      });
      g = {stacked_input_gradients(tp, saved, dy, role), Tensor()};
    } else {
      g = stacked_gradients(tp, saved, dy, role);
    }
    g.push_back(needs[2] ? dy.sum({1, 2}) : Tensor());
    return g;
  };
  const Tensor bias = bias_ != nullptr ? bias_->value : Tensor();
  return differentiable({x, weight_.value, bias}, forward, backward)[0];
}

Mixture::Mixture(const Context& ctx, const std::string& name, const ModelPlan& plan, double out_std)
    : ctx_(ctx),
      plan_(plan),
      site_(hash_name(name)),
      outer_(ctx.activation(Stream::kOuter)),
      router_(add(ctx.param(name + ".router.weight", {plan.hidden, plan.experts},
                            Layout{{outer_.dims[2], {}}}, RowUse::kFromOuter, {.std = kStd}))),
      up_(ctx, name + ".experts.up", plan, Role::kExpand, kStd),
      down_(ctx, name + ".experts.down", plan, Role::kContract, out_std),
      tally_(name, outer_.dims[0]) {
  add_child(up_);
  add_child(down_);
  if (plan.shared_experts == 0) return;
  shared_.emplace(ctx, name + ".shared", plan, plan.shared_experts * plan.ffn_width(), out_std);
  add_child(*shared_);
}

/// (B, S, H) in the outer layout -> (B, S, E), whole samples, the same on every rank that has a
/// part.
Tensor Mixture::logits(const Tensor& x, const Side& side) const {
  const auto axes = outer_.dims[2];
  const Forward forward = [&](const Tensors& in) -> ForwardResult {
    const Tensor y = ops::matmul(as_rows(in[0]).to(statistics(in[0])), in[1].to(statistics(in[0])));
    for (const std::string& axis : axes) raw::all_reduce(y, ctx_.mesh.comm(axis));
    return {{y.view({in[0].size(0), in[0].size(1), in[1].size(1)})}, {in[0], in[1]}};
  };
  const Backward backward = [](const Tensors& saved, const Tensors& grads,
                               const std::vector<bool>&) -> Tensors {
    const Tensor &x = saved[0], &w = saved[1];
    const Tensor d = as_rows(grads[0].contiguous());
    const Tensor dx = ops::matmul(d, w.to(d.scalar_type()).t());
    const Tensor dw = ops::matmul(as_rows(x).to(d.scalar_type()).t(), d);
    return {dx.to(x.scalar_type()).view(x.sizes()), dw.to(w.scalar_type())};
  };
  Tensor whole = differentiable({x, router_.value}, forward, backward)[0];
  // Parts that differ in length (an axis "sequence" alone may have them) meet padded.
  const int64_t ranks = ctx_.mesh.size(outer_.dims[1]);
  const bool is_uneven = side.sequence % ranks != 0;
  const int64_t longest = nth_part(side.sequence, ranks, 0).extent;
  if (is_uneven) whole = take_rows(whole, first_rows(whole.size(1), longest));
  for (size_t i = outer_.dims[1].size(); i-- > 0;) {
    whole = collect(whole, ctx_.mesh.comm(outer_.dims[1][i]), 1);
  }
  if (!is_uneven && side.order == nullptr) return whole;
  return take_rows(whole, padded_places(side.sequence, ranks, side.order));
}

int64_t Mixture::first_sample(int64_t local, const Side& side) const {
  return side.first_sample + ctx_.mesh.coord(outer_.dims[0]) * local;
}

Routed Mixture::route_samples(const Tensor& logits, const Side& side) const {
  const int64_t ranks = ctx_.mesh.size(outer_.dims[1]);
  // Beside a cache fewer tokens than model.sequence go forward at a time.
  const int64_t capacity = std::min(expert_capacity(plan_), side.sequence);
  ops::RouteSpec spec{.top_k = choices_of_token(plan_),
                      .capacity = capacity,
                      .slots = (capacity + ranks - 1) / ranks * ranks};
  if (plan_.random_second) {
    const int64_t local = logits.size(0), first = first_sample(local, side);
    spec.coin =
        coins({ctx_.params.seed, site_, side.step, first}, local, side.sequence, logits.device());
  }
  const double layers = static_cast<double>(num_mixtures(plan_));
  return route(
      logits, spec,
      {.balance = plan_.balance_loss * side.sample_scale / layers,
       .z = plan_.z_loss * side.sample_scale / (layers * static_cast<double>(side.sequence))});
}

Slots Mixture::slots_of(const Tensor& token, const Side& side) const {
  const auto positions = local_positions(ctx_.mesh, side.grid(outer_));
  const auto mine = static_cast<int64_t>(positions.size());
  if (mine == side.sequence) return {.rows = token, .num_rows = mine};
  std::vector<int64_t> place(static_cast<size_t>(side.sequence), -1);
  for (int64_t i = 0; i < mine; ++i) {
    place[static_cast<size_t>(positions[static_cast<size_t>(i)])] = i;
  }
  return {.rows = ops::local_rows(token, to_tensor(place, token.device())),
          .num_rows = mine,
          .sequence = outer_.dims[1]};
}

Mixture::Out Mixture::operator()(const Tensor& x, const Side& side) {
  const Tensors uses = fan_out(x, shared_ ? 3 : 2);
  const Routed routed = route_samples(logits(uses[0], side), side);
  if (side.is_training) {
    tally_.add(routed, side.step, first_sample(routed.token.size(0), side));
  }
  Tensor gates = routed.gates;
  for (const std::string& axis : outer_.dims[2]) gates = fork(gates, ctx_.mesh.comm(axis));
  const Slots slots = slots_of(routed.token, side);
  const Tensor inner = up_(ctx_.experts->dispatch(uses[1], slots));
  const Tensor rows = down_(activate(inner, activation_of(plan_)));
  const Tensor y = ctx_.experts->combine(rows, gates, slots);
  return {shared_ ? y + (*shared_)(uses[2]) : y, routed.loss};
}

}  // namespace kuafu
