// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "kuafu/meter/flops.h"
#include "kuafu/tensor/ops.h"
#include "kuafu/tensor/ops/library.h"

namespace kuafu {
namespace {

using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Hiding = std::optional<Tensor>;  // (B, 1, S, T): 0, or -infinity where a key is hidden

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double scale_of(const Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(3))); }

/// (B, N, S, D) over memory (B, S, N, D), as the CPU kernel returns it: heads merge without a copy.
Tensor heads_inside(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

Two attention_meta(const Tensor& q, const Tensor&, const Tensor&, bool, const Hiding&) {
  const Tensor lse =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(accumulator(q)));
  // The CPU kernel's output has the memory order of q.
  return {at::empty_like(unit_stride(q)), lse.transpose(1, 2)};
}

Three attention_backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor&, const Tensor&, bool, const Hiding&) {
  return {heads_inside(q), heads_inside(k), heads_inside(v)};
}

bool is_empty(const Tensor& q, const Tensor& k) { return q.numel() == 0 || k.numel() == 0; }

/// Of queries or keys that are none.
Two attention_of_nothing(const Tensor& q) {
  const auto [out, lse] = attention_meta(q, q, q, false, {});
  return {out.zero_(), lse.fill_(-kInfinity)};
}
Three gradients_of_nothing(const Tensor& q, const Tensor& k) {
  return {heads_inside(q).zero_(), heads_inside(k).zero_(), heads_inside(k).zero_()};
}

/// Query heads g, g + group, ...: one for each key-value head. (B, N, S, D) -> (B, Nkv, S, D)
Tensor member(const Tensor& t, int64_t g, int64_t group) { return t.slice(1, g, t.size(1), group); }

/// The lse of rows that see no key, which the CPU kernel calls 0.
Two with_blind_rows(const Two& result, const Hiding& mask) {
  const auto& [out, lse] = result;
  if (mask) lse.masked_fill_(mask->amax(3).eq(-kInfinity), -kInfinity);
  return result;
}

/// 0 in place of the -infinity of rows that see no key: e^(score - lse) is then 0, not e^(inf - inf).
Tensor finite(const Tensor& lse, const Hiding& mask) {
  return mask ? lse.masked_fill(lse.eq(-kInfinity), 0) : lse;
}

Two attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                  const Hiding& mask) {
  if (is_empty(q, k)) return attention_of_nothing(q);
  const Tensor queries = unit_stride(q), keys = unit_stride(k), values = unit_stride(v);
  const int64_t group = q.size(1) / k.size(1);
  const auto flash = [&](const Tensor& heads) {
    return at::_scaled_dot_product_flash_attention_for_cpu(heads, keys, values, 0.0, is_causal,
                                                           mask);
  };
  if (group == 1) return with_blind_rows(flash(queries), mask);
  const auto [out, lse] = attention_meta(q, k, v, is_causal, mask);
  for (int64_t g = 0; g < group; ++g) {
    const auto [out_g, lse_g] = flash(member(queries, g, group));
    member(out, g, group).copy_(out_g);
    member(lse, g, group).copy_(lse_g);
  }
  return with_blind_rows({out, lse}, mask);
}

Three attention_backward_cpu(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& out, const Tensor& saved_lse, bool is_causal,
                             const Hiding& mask) {
  if (is_empty(q, k)) return gradients_of_nothing(q, k);
  const Tensor lse = finite(saved_lse, mask), d = unit_stride(dout), queries = unit_stride(q),
               o = unit_stride(out);
  const Tensor keys = unit_stride(k), values = unit_stride(v);
  const int64_t group = q.size(1) / k.size(1);
  const auto flash = [&](int64_t g) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        member(d, g, group), member(queries, g, group), keys, values, member(o, g, group),
        member(lse, g, group), 0.0, is_causal, mask);
  };
  if (group == 1) return flash(0);
  const Tensor dq = heads_inside(q);
  Tensor dk, dv;  // sums over the group, in the accumulator type
  for (int64_t g = 0; g < group; ++g) {
    const auto [dq_g, dk_g, dv_g] = flash(g);
    member(dq, g, group).copy_(dq_g);
    dk = g == 0 ? dk_g.to(accumulator(k)) : dk.add_(dk_g);
    dv = g == 0 ? dv_g.to(accumulator(v)) : dv.add_(dv_g);
  }
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

/// (B, N, S, D) -> (B, Nkv, G S, D): the query heads that read one key-value head as one, widened.
Tensor grouped(const Tensor& t, const Tensor& k) {
  return widened(t).view({t.size(0), k.size(1), -1, t.size(3)});
}

/// Scaled and masked scores (B, Nkv, G S, T), for devices and types without a fast kernel.
Tensor scores(const Tensor& q, const Tensor& k, bool is_causal, const Hiding& mask) {
  Tensor s = at::matmul(grouped(q, k), widened(k).transpose(2, 3)).mul_(scale_of(q));
  const Tensor by_head = s.view({q.size(0), q.size(1), q.size(2), k.size(2)});
  if (mask) {  // which hides later keys too
    by_head.add_(*mask);
  } else if (is_causal) {
    const Tensor later = at::ones({q.size(2), k.size(2)}, s.options().dtype(at::kBool)).triu_(1);
    by_head.masked_fill_(later, -kInfinity);
  }
  return s;
}

Two attention_plain(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                    const Hiding& mask) {
  if (is_empty(q, k)) return attention_of_nothing(q);
  const Tensor s = scores(q, k, is_causal, mask);
  const Tensor lse = at::logsumexp(s, {3});
  const Tensor p = (s - finite(lse, mask).unsqueeze(3)).exp_();
  const Tensor out = heads_inside(q);
  out.copy_(at::matmul(p, widened(v)).view(q.sizes()));
  return {out, lse.view({q.size(0), q.size(1), q.size(2)})};
}

/// With P the weights and O the output:  dV = P^T dO,  dS = P (dO V^T - rowsum(dO O)),
/// dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D).   [Dao et al., arXiv 2205.14135, appendix B.2]
Three attention_backward_plain(const Tensor& dout, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& out, const Tensor& lse,
                               bool is_causal, const Hiding& mask) {
  if (is_empty(q, k)) return gradients_of_nothing(q, k);
  const Tensor l = grouped(finite(lse, mask).unsqueeze(3), k);
  const Tensor p = (scores(q, k, is_causal, mask) - l).exp_();
  const Tensor g = grouped(dout, k);
  const Tensor delta = (g * grouped(out, k)).sum(3, true);
  const Tensor ds = (at::matmul(g, widened(v).transpose(2, 3)) - delta).mul_(p);
  const Tensor dq = heads_inside(q), dk = heads_inside(k), dv = heads_inside(v);
  dq.copy_(at::matmul(ds, widened(k)).mul_(scale_of(q)).view(q.sizes()));
  dk.copy_(at::matmul(ds.transpose(2, 3), grouped(q, k)).mul_(scale_of(q)));
  dv.copy_(at::matmul(p.transpose(2, 3), g));
  return {dq, dk, dv};
}

bool is_half(const Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf;
}

/// Heads as the flash kernel of cards reads them: of 8, 16, ... elements; zeros add nothing.
Tensor for_flash(const Tensor& t) {
  const int64_t over = t.size(3) % 8;
  return over == 0 ? unit_stride(t) : at::constant_pad_nd(t, {0, 8 - over});
}

/// The first elements of each head, as `like` has them.
Tensor unpadded(const Tensor& t, const Tensor& like) {
  if (t.size(3) == like.size(3)) return t;
  const Tensor out = heads_inside(like);
  out.copy_(t.narrow(3, 0, like.size(3)));
  return out;
}

/// Whether cuDNN's kernel takes them, which on Hopper is twice as fast as the flash kernel. A long
/// sequence alone is worth the making of its plan.
bool is_for_cudnn(const Tensor& q, const Tensor& k) {
  constexpr int64_t kLong = 256, kMostWidth = 128;
  return q.is_cuda() && q.size(1) == k.size(1) && q.size(2) == k.size(2) && q.size(2) >= kLong &&
         q.size(3) % 8 == 0 && q.size(3) <= kMostWidth;
}

/// Half precision: cuDNN's kernel, or the flash kernel, which knows groups of query heads. f32 and
/// f64, and all types under a mask: matrix products, exact to the type.
Two attention_cuda(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                   const Hiding& mask) {
  if (!is_half(q) || is_empty(q, k) || mask) return attention_plain(q, k, v, is_causal, mask);
  if (is_for_cudnn(q, k)) {
    auto result = at::_scaled_dot_product_cudnn_attention(unit_stride(q), unit_stride(k),
                                                          unit_stride(v), std::nullopt, true, 0.0,
                                                          is_causal, false, scale_of(q));
    return {std::get<0>(result), std::get<1>(result).squeeze(-1)};
  }
  auto result = at::_scaled_dot_product_flash_attention(for_flash(q), for_flash(k), for_flash(v),
                                                        0.0, is_causal, false, scale_of(q));
  return {unpadded(std::get<0>(result), q), std::get<1>(result)};
}

Three attention_backward_cuda(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& out, const Tensor& lse, bool is_causal,
                              const Hiding& mask) {
  if (!is_half(q) || is_empty(q, k) || mask) {
    return attention_backward_plain(dout, q, k, v, out, lse, is_causal, mask);
  }
  const Tensor none;  // no packed sequences
  if (is_for_cudnn(q, k)) {
    const Tensor zero = at::zeros({}, q.options().dtype(at::kLong));  // dropout's random state
    return at::_scaled_dot_product_cudnn_attention_backward(
        unit_stride(dout), unit_stride(q), unit_stride(k), unit_stride(v), unit_stride(out),
        lse.unsqueeze(-1), zero, zero, none, none, none, q.size(2), k.size(2), 0.0, is_causal,
        scale_of(q));
  }
  const Tensor unused = at::zeros({2}, q.options().dtype(at::kLong));  // dropout's random state
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      for_flash(dout), for_flash(q), for_flash(k), for_flash(v), for_flash(out), lse.contiguous(),
      none, none, q.size(2), k.size(2), 0.0, is_causal, unused, unused, scale_of(q));
  return {unpadded(dq, q), unpadded(dk, k), unpadded(dv, v)};
}

/// Whole causal or full rectangles: hidden keys are multiplied too.
flops::AttentionExtents extents(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                                const Tensor& mask) {
  KUAFU_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                  k.size(1) > 0 && q.size(1) % k.size(1) == 0 && q.size(3) == k.size(3) &&
                  (!is_causal || q.size(2) == k.size(2)),
              is_causal ? "causal" : "full", " attention of q ", to_string(shape_of(q)), ", k ",
              to_string(shape_of(k)), ", v ", to_string(shape_of(v)));
  KUAFU_CHECK(
      !mask.defined() || (mask.sizes() == at::IntArrayRef{q.size(0), 1, q.size(2), k.size(2)} &&
                          mask.scalar_type() == q.scalar_type()),
      "a mask of attention ", to_string(shape_of(mask)), " for q ", to_string(shape_of(q)), ", k ",
      to_string(shape_of(k)));
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), is_causal};
}

}  // namespace

void add_attention_ops(OpLibrary& lib) {
  lib.add(
      "attention(Tensor q, Tensor k, Tensor v, bool is_causal, Tensor? mask) -> (Tensor, Tensor)",
      "attention", &attention_cpu, &attention_cuda, &attention_meta, CpuKernel::kAten);
  lib.add(
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
      "bool is_causal, Tensor? mask) -> (Tensor, Tensor, Tensor)",
      "attention_backward", &attention_backward_cpu, &attention_backward_cuda,
      &attention_backward_meta, CpuKernel::kAten);
}

namespace ops {

AttentionOut attention(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                       const Tensor& mask) {
  static const auto op =
      find_op<Two(const Tensor&, const Tensor&, const Tensor&, bool, const Hiding&)>("attention");
  const flops::AttentionExtents shape = extents(q, k, v, is_causal, mask);
  const OpScope scope;
  const auto [out, lse] = op.call(q, k, v, is_causal, maybe(mask));
  scope.keep(out);
  scope.keep(lse);
  scope.work(flops::attention(shape), bytes_of(q, k, v, mask, out, lse));
  return {out, lse};
}

AttentionGrads attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const AttentionOut& saved, bool is_causal,
                                  const Tensor& mask) {
  static const auto op =
      find_op<Three(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&, bool, const Hiding&)>("attention_backward");
  const flops::AttentionExtents shape = extents(q, k, v, is_causal, mask);
  const OpScope scope;
  const auto [dq, dk, dv] = op.call(dout, q, k, v, saved.out, saved.lse, is_causal, maybe(mask));
  for (const Tensor& t : {dq, dk, dv}) scope.keep(t);
  scope.work(flops::attention_backward(shape),
             bytes_of(dout, q, k, v, mask, saved.out, saved.lse, dq, dk, dv));
  return {dq, dk, dv};
}

}  // namespace ops
}  // namespace kuafu
