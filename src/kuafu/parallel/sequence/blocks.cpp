// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/sequence/blocks.h"

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/book.h"
#include "kuafu/tensor/differentiable.h"

namespace kuafu {
namespace {

constexpr int64_t kSeq = 2;  // dim of (B, N, S, D) and of (B, N, S)

Tensor rows_of(const Tensor& t, const Part& p) { return t.narrow(kSeq, p.offset, p.extent); }

}  // namespace

Tensor zeros_of_sums(at::IntArrayRef shape, const Tensor& like) {
  const auto type = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::zeros(shape, like.options().dtype(type));
}

void attend_block(ops::AttentionOut& into, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Block& block) {
  const ops::AttentionOut part = ops::attention(rows_of(q, block.queries), rows_of(k, block.keys),
                                                rows_of(v, block.keys), block.is_causal);
  if (!into.out.defined()) return ops::attention_merge(into, part);
  ops::AttentionOut rows{rows_of(into.out, block.queries), rows_of(into.lse, block.queries)};
  ops::attention_merge(rows, part);
}

void attend_block_backward(QuerySide& side, const Tensor& k, const Tensor& v, const Tensor& dk,
                           const Tensor& dv, const Block& block) {
  const Part &queries = block.queries, &keys = block.keys;
  const auto [dq, dk_part, dv_part] = ops::attention_backward(
      rows_of(side.dout, queries), rows_of(side.q, queries), rows_of(k, keys), rows_of(v, keys),
      {rows_of(side.saved.out, queries), rows_of(side.saved.lse, queries)}, block.is_causal);
  rows_of(side.dq, queries).add_(dq);
  rows_of(dk, keys).add_(dk_part);
  rows_of(dv, keys).add_(dv_part);
}

Tensor BlockAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const {
  KUAFU_CHECK(q.size(kSeq) == tokens_of(rank()).extent, "attention of ", q.size(kSeq),
              " tokens on rank ", rank(), " of ", size(), " that share ", setup_.sequence);
  const bool again = setup_.recompute == Recompute::kSelective;
  const Forward there = [&](const Tensors& in) -> ForwardResult {
    const auto [sum, lse] = forward(in[0], in[1], in[2], mask);
    const Tensor out = sum.to(q.scalar_type());
    if (again) return {{out}, {in[0], in[1], in[2]}};
    return {{out}, {in[0], in[1], in[2], out, lse}};
  };
  const Backward back = [this, mask, again](const Tensors& saved, const Tensors& grads,
                                            const std::vector<bool>&) -> Tensors {
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    QuerySide side{grads[0], q, {}, {}};
    if (again) {
      const RecomputeScope scope;
      const auto [sum, lse] = forward(q, k, v, mask);
      side.saved = {sum.to(q.scalar_type()), lse};
    } else {
      side.saved = {saved[3], saved[4]};
    }
    side.dq = zeros_of_sums(q.sizes(), q);
    const auto [dk, dv] = backward(side, k, v, mask);
    const auto type = q.scalar_type();
    return {side.dq.to(type), dk.to(type), dv.to(type)};
  };
  return differentiable({q, k, v}, there, back)[0];
}

}  // namespace kuafu
