// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <tuple>

#include "kuafu/kernels/experts.h"
#include "kuafu/tensor/expert_ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

using RouteTuple =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using RouteOp = RouteTuple(const Tensor&, const Tensor&, int64_t, int64_t, int64_t);
using BackwardOp = Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&, const Tensor&, double, double);

/// The results of a route, uninitialised: shapes are the same on every device.
ops::RouteOut outputs(const Tensor& logits, int64_t top_k, int64_t slots) {
  const int64_t b = logits.size(0), s = logits.size(1), e = logits.size(2);
  const auto real = logits.options(), i64 = real.dtype(at::kLong);
  return {.gates = at::empty({b, e, slots}, real),
          .losses = at::empty({2}, real),
          .token = at::empty({b, e, slots}, i64),
          .probs = at::empty({b, s, e}, real),
          .lse = at::empty({b, s}, real),
          .norm = at::empty({b, s}, real),
          .chosen = at::empty({b, s, top_k}, i64),
          .share = at::empty({b, e}, real),
          .counts = at::empty({2 * e + 2}, i64)};
}

RouteTuple as_tuple(const ops::RouteOut& r) {
  return {r.gates, r.losses, r.token, r.probs, r.lse, r.norm, r.chosen, r.share, r.counts};
}

template <class T>
void route_all(const Tensor& logits, const Tensor& coin, const kernels::RouteShape& shape,
               const ops::RouteOut& out) {
  kernels::route<T>(shape, {.logits = logits.const_data_ptr<T>(),
                            .coin = coin.numel() > 0 ? coin.const_data_ptr<double>() : nullptr,
                            .gates = out.gates.mutable_data_ptr<T>(),
                            .losses = out.losses.mutable_data_ptr<T>(),
                            .probs = out.probs.mutable_data_ptr<T>(),
                            .lse = out.lse.mutable_data_ptr<T>(),
                            .norm = out.norm.mutable_data_ptr<T>(),
                            .share = out.share.mutable_data_ptr<T>(),
                            .token = out.token.mutable_data_ptr<int64_t>(),
                            .chosen = out.chosen.mutable_data_ptr<int64_t>(),
                            .counts = out.counts.mutable_data_ptr<int64_t>()});
}

RouteTuple route_cpu(const Tensor& logits, const Tensor& coin, int64_t top_k, int64_t capacity,
                     int64_t slots) {
  const ops::RouteOut out = outputs(logits, top_k, slots);
  const Tensor in = logits.contiguous(), u = coin.contiguous();
  const kernels::RouteShape shape{.samples = logits.size(0),
                                  .tokens = logits.size(1),
                                  .experts = logits.size(2),
                                  .slots = slots,
                                  .top_k = top_k,
                                  .capacity = capacity};
  if (logits.scalar_type() == at::kDouble) {
    route_all<double>(in, u, shape, out);
  } else {
    route_all<float>(in, u, shape, out);
  }
  return as_tuple(out);
}

RouteTuple route_meta(const Tensor& logits, const Tensor&, int64_t top_k, int64_t, int64_t slots) {
  return as_tuple(outputs(logits, top_k, slots));
}

/// On other devices the decisions, a few bytes a token, are made by the CPU's loops.
RouteTuple route_plain(const Tensor& logits, const Tensor& coin, int64_t top_k, int64_t capacity,
                       int64_t slots) {
  const RouteTuple made = route_cpu(logits.to(at::kCPU), coin.to(at::kCPU), top_k, capacity, slots);
  return std::apply([&](const auto&... t) { return RouteTuple{t.to(logits.device())...}; }, made);
}

/// p (B, S, E) times (d - sum_e p d), plus the z-loss: the softmax's backward.
Tensor through_softmax(const Tensor& d, const Tensor& probs, const Tensor& lse, double z) {
  const Tensor inner = (probs * d).sum(-1, true);
  return (d - inner).add_(lse.unsqueeze(-1), 2 * z).mul_(probs);
}

/// With gate = p / norm, norm = sum over the chosen p: dp = dgate / norm, and each chosen expert
/// loses (sum of dgate gate) / norm.
Tensor route_backward_kernel(const Tensor& dgates, const Tensor& gates, const Tensor& token,
                             const Tensor& probs, const Tensor& lse, const Tensor& norm,
                             const Tensor& chosen, const Tensor& share, double balance, double z) {
  const int64_t b = probs.size(0), s = probs.size(1), e = probs.size(2), c = token.size(2);
  // Slots' gradients by token and expert; empty slots go to a token beyond the last.
  const Tensor at = at::where(token.ge(0), token, at::full({}, s, token.options()));
  const Tensor column = at::arange(e, token.options()).view({1, e, 1});
  const Tensor place = (at * e + column).view({b, e * c});
  const auto scatter = [&](const Tensor& values) {
    const Tensor into = at::zeros({b, (s + 1) * e}, probs.options());
    into.scatter_(1, place, values.reshape({b, e * c}));  // a token is in an expert's slots once
    return into.view({b, s + 1, e}).narrow(1, 0, s);
  };
  Tensor d = scatter(dgates) / norm.unsqueeze(-1);
  if (chosen.size(2) > 1) {
    const Tensor loss = scatter(dgates * gates).sum(-1, true) / norm.unsqueeze(-1);
    d.scatter_add_(2, chosen, loss.neg().expand(chosen.sizes()));
  }
  d.add_(share.unsqueeze(1), balance);
  return through_softmax(d, probs, lse, z);
}

Tensor route_backward_meta(const Tensor&, const Tensor&, const Tensor&, const Tensor& probs,
                           const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                           double) {
  return at::empty(probs.sizes(), probs.options());
}

}  // namespace

void add_route_ops(OpLibrary& lib) {
  lib.add(
      "route(Tensor logits, Tensor coin, int top_k, int capacity, int slots) -> (Tensor, Tensor, "
      "Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
      "route", &route_cpu, &route_plain, &route_meta);
  lib.add(
      "route_backward(Tensor dgates, Tensor gates, Tensor token, Tensor probs, Tensor lse, Tensor "
      "norm, Tensor chosen, Tensor share, float balance, float z) -> Tensor",
      "route_backward", &route_backward_kernel, &route_backward_kernel, &route_backward_meta);
}

namespace ops {

RouteOut route(const Tensor& logits, const RouteSpec& spec) {
  static const auto op = find_op<RouteOp>("route");
  KUAFU_CHECK(logits.dim() == 3 && logits.scalar_type() == accumulator(logits),
              "router logits (B, S, E) are f32 or f64, got ", to_string(shape_of(logits)), " ",
              logits.scalar_type());
  KUAFU_CHECK(spec.top_k >= 0 && spec.top_k <= logits.size(2), "top_k ", spec.top_k, " of ",
              logits.size(2), " experts");
  KUAFU_CHECK(spec.capacity >= 1 && spec.capacity <= logits.size(1) && spec.slots >= spec.capacity,
              "capacity ", spec.capacity, " of ", spec.slots, " slots for ", logits.size(1),
              " tokens");
  const OpScope scope;
  const Tensor coin =
      spec.coin.defined() ? spec.coin : at::empty({0}, logits.options().dtype(at::kDouble));
  const RouteTuple made = op.call(logits, coin, spec.top_k, spec.capacity, spec.slots);
  const auto out = std::apply([](const auto&... t) { return RouteOut{t...}; }, made);
  std::apply([&](const auto&... t) { (scope.keep(t), ...); }, made);
  scope.work(0, bytes_of(logits, out.gates, out.token, out.probs));
  return out;
}

Tensor route_backward(const Tensor& dgates, const RouteOut& saved, LossWeights weights) {
  static const auto op = find_op<BackwardOp>("route_backward");
  const OpScope scope;
  const Tensor dlogits =
      scope.keep(op.call(dgates, saved.gates, saved.token, saved.probs, saved.lse, saved.norm,
                         saved.chosen, saved.share, weights.balance, weights.z));
  scope.work(0, bytes_of(dgates, saved.token, saved.probs, dlogits));
  return dlogits;
}

}  // namespace ops
}  // namespace kuafu
