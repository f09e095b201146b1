// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "kuafu/meter/flops.h"
#include "kuafu/tensor/op_library.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

/// The kernels read any strides but the last.
Tensor unit_stride(const Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

double scale_of(const Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(3))); }

Two attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal) {
  return at::_scaled_dot_product_flash_attention_for_cpu(unit_stride(q), unit_stride(k),
                                                         unit_stride(v), 0.0, is_causal);
}

Three attention_backward_cpu(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& out, const Tensor& lse, bool is_causal) {
  return at::_scaled_dot_product_flash_attention_for_cpu_backward(
      unit_stride(dout), unit_stride(q), unit_stride(k), unit_stride(v), out, lse, 0.0, is_causal);
}

/// (B, N, S, D) over memory (B, S, N, D), as the CPU kernel returns it: heads merge without a copy.
Tensor heads_inside(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

Two attention_meta(const Tensor& q, const Tensor&, const Tensor&, bool) {
  const Tensor lse =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(accumulator(q)));
  // The CPU kernel's output has the memory order of q.
  return {at::empty_like(unit_stride(q)), lse.transpose(1, 2)};
}

Three attention_backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor&, const Tensor&, bool) {
  return {heads_inside(q), heads_inside(k), heads_inside(v)};
}

/// Scaled and masked scores (B, N, S, T), for devices and types without a fast kernel.
Tensor scores(const Tensor& q, const Tensor& k, bool is_causal) {
  Tensor s = at::matmul(widened(q), widened(k).transpose(2, 3)).mul_(scale_of(q));
  if (!is_causal) return s;
  const Tensor hidden = at::ones({q.size(2), k.size(2)}, s.options().dtype(at::kBool)).triu_(1);
  return s.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

Two attention_plain(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal) {
  const Tensor s = scores(q, k, is_causal);
  const Tensor lse = at::logsumexp(s, {3});
  const Tensor p = (s - lse.unsqueeze(3)).exp_();
  const Tensor out = heads_inside(q);
  out.copy_(at::matmul(p, widened(v)));
  return {out, lse};
}

/// With P the weights and O the output:  dV = P^T dO,  dS = P (dO V^T - rowsum(dO O)),
/// dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D).   [Dao et al., arXiv 2205.14135, appendix B.2]
Three attention_backward_plain(const Tensor& dout, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& out, const Tensor& lse,
                               bool is_causal) {
  const Tensor p = (scores(q, k, is_causal) - lse.unsqueeze(3)).exp_();
  const Tensor g = widened(dout);
  const Tensor delta = (g * widened(out)).sum(3, true);
  const Tensor ds = (at::matmul(g, widened(v).transpose(2, 3)) - delta).mul_(p);
  const Tensor dq = heads_inside(q), dk = heads_inside(k), dv = heads_inside(v);
  dq.copy_(at::matmul(ds, widened(k)).mul_(scale_of(q)));
  dk.copy_(at::matmul(ds.transpose(2, 3), widened(q)).mul_(scale_of(q)));
  dv.copy_(at::matmul(p.transpose(2, 3), g));
  return {dq, dk, dv};
}

bool is_half(const Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}

/// Half precision: the flash kernel. f32 and f64: matrix products, exact to the type.
Two attention_cuda(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal) {
  if (!is_half(q)) return attention_plain(q, k, v, is_causal);
  auto result = at::_scaled_dot_product_flash_attention(unit_stride(q), unit_stride(k),
                                                        unit_stride(v), 0.0, is_causal);
  return {std::get<0>(result), std::get<1>(result)};
}

Three attention_backward_cuda(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& out, const Tensor& lse, bool is_causal) {
  if (!is_half(q)) return attention_backward_plain(dout, q, k, v, out, lse, is_causal);
  const Tensor none;                                                   // no packed sequences
  const Tensor unused = at::zeros({2}, q.options().dtype(at::kLong));  // dropout's random state
  return at::_scaled_dot_product_flash_attention_backward(
      unit_stride(dout), unit_stride(q), unit_stride(k), unit_stride(v), out, lse, none, none,
      q.size(2), k.size(2), 0.0, is_causal, unused, unused);
}

flops::Attention extents(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal) {
  KUAFU_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                  q.size(1) == k.size(1) && q.size(3) == k.size(3),
              "attention of q ", to_string(shape_of(q)), ", k ", to_string(shape_of(k)), ", v ",
              to_string(shape_of(v)));
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), is_causal};
}

}  // namespace

void add_attention_ops(OpLibrary& lib) {
  lib.add("attention(Tensor q, Tensor k, Tensor v, bool is_causal) -> (Tensor, Tensor)",
          "attention", &attention_cpu, &attention_cuda, &attention_meta);
  lib.add(
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "bool is_causal) -> (Tensor, Tensor, Tensor)",
      "attention_backward", &attention_backward_cpu, &attention_backward_cuda,
      &attention_backward_meta);
}

namespace ops {

AttentionOut attention(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal) {
  static const auto op =
      find_op<Two(const Tensor&, const Tensor&, const Tensor&, bool)>("attention");
  const flops::Attention shape = extents(q, k, v, is_causal);
  const OpScope scope;
  const auto [out, lse] = op.call(q, k, v, is_causal);
  scope.keep(out);
  scope.keep(lse);
  scope.work(flops::attention(shape), bytes_of(q, k, v, out, lse));
  return {out, lse};
}

AttentionGrads attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const AttentionOut& saved, bool is_causal) {
  static const auto op = find_op<Three(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                       const Tensor&, const Tensor&, bool)>("attention_backward");
  const flops::Attention shape = extents(q, k, v, is_causal);
  const OpScope scope;
  const auto [dq, dk, dv] = op.call(dout, q, k, v, saved.out, saved.lse, is_causal);
  for (const Tensor& t : {dq, dk, dv}) scope.keep(t);
  scope.work(flops::attention_backward(shape),
             bytes_of(dout, q, k, v, saved.out, saved.lse, dq, dk, dv));
  return {dq, dk, dv};
}

}  // namespace ops
}  // namespace kuafu
