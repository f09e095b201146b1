// SPDX-License-Identifier: Apache-2.0
#include "kuafu/parallel/sequence/blocks.h"

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/meter/book.h"
#include "kuafu/tensor/differentiable.h"

namespace kuafu {
namespace {

constexpr int kPassTag = 0x5f2;
constexpr int64_t kSeq = 2;  // dim of (B, N, S, D) and of (B, N, S)

Tensor rows_of(const Tensor& t, const Part& p) { return t.narrow(kSeq, p.offset, p.extent); }

}  // namespace

std::vector<int64_t> zigzag_order(int64_t sequence, int64_t n) {
  std::vector<int64_t> positions;
  int64_t early = 0, late = sequence;
  for (int64_t r = 0; r < n; ++r) {
    const int64_t tokens = nth_part(sequence, n, r).extent, first = early_tokens(tokens);
    late -= tokens - first;
    for (int64_t i = 0; i < first; ++i) positions.push_back(early + i);
    for (int64_t i = 0; i < tokens - first; ++i) positions.push_back(late + i);
    early += first;
  }
  return positions;
}

at::ScalarType type_of_sums(const Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor empty_pack(const Tensor& k, int64_t tokens, at::ScalarType type) {
  const CategoryScope scope(Category::kCommunication);
  return at::empty({2, k.size(0), k.size(1), tokens, k.size(3)}, k.options().dtype(type));
}

Tensor packed(const Tensor& k, const Tensor& v) {
  const Tensor both = empty_pack(k, k.size(kSeq), k.scalar_type());
  both[0].copy_(k);
  both[1].copy_(v);
  return both;
}

Tensor Passing::finish() {
  work.wait();
  out.reset();
  return std::move(in);
}

Passing pass(Communicator& c, const Tensor& out, const Tensor& in) {
  const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
  Passing p{out, in, {}};
  if (out.defined() && in.defined()) {
    p.work = c.send_recv(view(out), next, view(in), before, kPassTag);
  } else if (out.defined()) {
    p.work = c.send(view(out), next, kPassTag);
  } else if (in.defined()) {
    p.work = c.recv(view(in), before, kPassTag);
  }
  return p;
}

void attend_block(ops::AttentionOut& into, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Block& block) {
  if (block.queries.extent == 0 || block.keys.extent == 0) return;
  const ops::AttentionOut part =
      ops::attention(rows_of(q, block.queries), rows_of(k, block.keys), rows_of(v, block.keys),
                     block.is_causal, block.mask);
  if (!into.out.defined()) return ops::attention_merge(into, part);
  ops::AttentionOut rows{rows_of(into.out, block.queries), rows_of(into.lse, block.queries)};
  ops::attention_merge(rows, part);
}

void attend_block_backward(QuerySide& side, const Tensor& k, const Tensor& v, const Tensor& sums,
                           const Block& block) {
  if (block.queries.extent == 0 || block.keys.extent == 0) return;
  const Part &queries = block.queries, &keys = block.keys;
  const auto [dq, dk, dv] = ops::attention_backward(
      rows_of(side.dout, queries), rows_of(side.q, queries), rows_of(k, keys), rows_of(v, keys),
      {rows_of(side.saved.out, queries), rows_of(side.saved.lse, queries)}, block.is_causal,
      block.mask);
  if (side.dq.defined()) {
    rows_of(side.dq, queries).add_(dq.to(side.dq.scalar_type()));
  } else {
    side.dq = dq.to(type_of_sums(dq));
  }
  // Widened by hand: an add of two types does it out of sight on a CPU and not at all on meta.
  rows_of(sums[0], keys).add_(dk.to(sums.scalar_type()));
  rows_of(sums[1], keys).add_(dv.to(sums.scalar_type()));
}

std::vector<int64_t> BlockAttention::positions(const Part& places) const {
  const std::vector<int64_t> all = order();
  std::vector<int64_t> out;
  for (int64_t i = places.offset; i < places.offset + places.extent; ++i) {
    out.push_back(all.empty() ? i : all[static_cast<size_t>(i)]);
  }
  return out;
}

Block BlockAttention::masked(Block block, int64_t begin, const Sight& sight,
                             const Tensor& q) const {
  if (!sight.first.defined() || block.queries.extent == 0 || block.keys.extent == 0) return block;
  const int64_t mine = tokens_of(rank()).offset;
  block.mask =
      sight.between(positions({mine + block.queries.offset, block.queries.extent}),
                    positions({begin + block.keys.offset, block.keys.extent}), q.scalar_type());
  return block;
}

Tensor BlockAttention::attend(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Sight& sight) const {
  KUAFU_CHECK(q.size(kSeq) == tokens_of(rank()).extent, "attention of ", q.size(kSeq),
              " tokens on rank ", rank(), " of ", size(), " that share ", setup_.sequence);
  const bool again = is_selective();
  const Forward there = [&](const Tensors& in) -> ForwardResult {
    const auto [sum, lse] = forward(in[0], in[1], in[2], sight);
    const Tensor out = sum.to(q.scalar_type());
    if (again) return {{out}, {in[0], in[1], in[2]}};
    return {{out}, {in[0], in[1], in[2], out, lse}};
  };
  const Backward back = [this, sight, again](const Tensors& saved, const Tensors& grads,
                                             const std::vector<bool>&) -> Tensors {
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    QuerySide side{grads[0], q, {}};
    if (again) {
      const RecomputeScope scope;
      const auto [sum, lse] = forward(q, k, v, sight);
      side.saved = {sum.to(q.scalar_type()), lse};
    } else {
      side.saved = {saved[3], saved[4]};
    }
    const Tensor sums = backward(side, k, v, sight);
    const auto type = q.scalar_type();
    // Copies: the two halves of one tensor would keep each other alive.
    return {side.dq.to(type), sums[0].to(type, false, true), sums[1].to(type, false, true)};
  };
  return differentiable({q, k, v}, there, back)[0];
}

}  // namespace kuafu
