// SPDX-License-Identifier: Apache-2.0
//
//   P = softmax(Q K^T / sqrt(D))          out = P V
//   dV = P^T dout                         dP = dout V^T
//   dS = P (dP - sum_j P dP)              dQ = dS K / sqrt(D)      dK = dS^T Q / sqrt(D)
//
// [Dao et al., arXiv 2205.14135, appendix B.2]

#include "kuafu/conformance/whole_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "kuafu/base/errors.h"
#include "kuafu/conformance/samples.h"

namespace kuafu::conformance {
namespace {

Tensor whole_input(const Attended& a, const std::string& name, int64_t heads) {
  const AttentionShape& s = a.shape;
  const Mesh alone({}, 0);
  const Param p =
      shard(name, {s.batch, s.sequence, heads, s.head_dim}, Layout::replicated(4), alone);
  return p.value.detach().to(a.dtype).to(at::kDouble).transpose(1, 2);
}

/// Sums over the query heads that share a key-value head: (B, N, S, D) -> (B, Nkv, S, D).
Tensor summed_heads(const Tensor& x, int64_t kv_heads) {
  return x.unflatten(1, {kv_heads, x.size(1) / kv_heads}).sum(2);
}

Tensor probabilities(const Attended& a, const Tensor& q, const Tensor& k) {
  const int64_t length = a.shape.sequence;
  const Tensor scores =
      at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(a.shape.head_dim));
  if (a.shape.mask == Mask::kNone) return at::softmax(scores, -1);
  Tensor hidden =
      at::ones({length, length}, at::TensorOptions(at::kBool).device(compute_device())).triu(1);
  if (a.is_inside_documents) {
    const Tensor first = documents_of(a.shape);
    hidden = hidden.logical_or(first.unsqueeze(2).ne(first.unsqueeze(1))).unsqueeze(1);
  }
  return at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
}

/// The formulas with P given; `sign` is that of the second term of dS: with absolute inputs and +1
/// they are sums of absolute terms.
AttentionResult attended(const Attended& a, const Tensor& p, const AttentionInputs& in,
                         double sign) {
  const int64_t kv_heads = a.shape.kv_heads, share = a.shape.heads / kv_heads;
  const double scale = 1 / std::sqrt(static_cast<double>(a.shape.head_dim));
  const Tensor k = in.k.repeat_interleave(share, 1), v = in.v.repeat_interleave(share, 1);
  const Tensor dp = at::matmul(in.dout, v.transpose(2, 3));
  const Tensor ds = p * (dp + sign * (p * dp).sum(-1, true));
  return {at::matmul(p, v), at::matmul(ds, k) * scale,
          summed_heads(at::matmul(ds.transpose(2, 3), in.q), kv_heads) * scale,
          summed_heads(at::matmul(p.transpose(2, 3), in.dout), kv_heads)};
}

}  // namespace

std::string Attended::name() const {
  return text(shape.mask == Mask::kCausal ? "causal" : "full",
              is_inside_documents ? ", inside documents" : "",
              recompute == Recompute::kSelective ? ", selective recomputation" : "");
}

std::string to_string(const AttentionShape& s) {
  return text("B ", s.batch, ", N ", s.heads, ", Nkv ", s.kv_heads, ", D ", s.head_dim, ", S ",
              s.sequence);
}

Tensor documents_of(const AttentionShape& s) {
  const at::TensorOptions options = at::TensorOptions(at::kLong).device(compute_device());
  const Tensor i = at::arange(s.sequence, options), b = at::arange(s.batch, options).unsqueeze(1);
  const Tensor is_first = (i * i + 3 * b * i + b).remainder(5).eq(0);
  return std::get<0>(is_first.to(at::kLong).mul(i).cummax(1));
}

AttentionInputs::AttentionInputs(const Attended& a)
    : q(whole_input(a, "q", a.shape.heads)),
      k(whole_input(a, "k", a.shape.kv_heads)),
      v(whole_input(a, "v", a.shape.kv_heads)),
      dout(whole_input(a, "dout", a.shape.heads)) {}

WholeAttention whole_attention(const Attended& a) {
  AttentionInputs in(a);
  const Tensor p =
      probabilities(a, in.q, in.k.repeat_interleave(a.shape.heads / a.shape.kv_heads, 1));
  const AttentionResult values = attended(a, p, in, -1);
  for (Tensor* t : {&in.q, &in.k, &in.v, &in.dout}) *t = t->abs();
  return {values, attended(a, p, in, 1)};
}

}  // namespace kuafu::conformance
