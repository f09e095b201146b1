// SPDX-License-Identifier: Apache-2.0
//
// All-gather attention: every rank has all keys and values for as long as it needs them. The simple
// reference that ring and Ulysses are compared with.  [Korthikanti et al., arXiv 2205.05198, 4.2.2]
//
// Picture (n = 2), causal: queries of rank 1 see all of k0, and k1 as far as the mask.
//
//   rank 0: q0 k0 v0        K = [k0 k1]  V = [v0 v1]        out0 = q0 to k0
//   rank 1: q1 k1 v1        the same                        out1 = q1 to k0, merged with q1 to k1
//
// Math, rank r, [.] gathers along S:
//   (1) out_r = attention(q_r, [k], [v])           causal: keys before mine, merged with my own
//   (2) [k], [v] again;  dq_r;  dk_r, dv_r = parts r of the sums over ranks of d[k], d[v]
//
// Cost, elements received, g = 2 B Nkv D (n - 1) (tokens of the first rank: shorter parts are
//   padded): g forward; g backward and g of gradients. Selective: + g.

#include <ATen/ATen.h>

#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/sequence/blocks.h"
#include "kuafu/tensor/collectives.h"

namespace kuafu {
namespace {

constexpr int64_t kSeq = 3;  // dim of (2, B, Nkv, S, D)

class AllGatherAttention : public BlockAttention {
 public:
  using BlockAttention::BlockAttention;

  AttentionCost cost(const AttentionShape& s) const override {
    const int64_t received =
        2 * s.batch * s.kv_heads * s.head_dim * (size() - 1) * tokens_of(0).extent;
    return {received, (is_selective() ? 3 : 2) * received, received};
  }

 protected:
  ops::AttentionOut forward(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Sight& sight) const override {  // (1)
    const Tensor whole = gather(k, v);
    ops::AttentionOut out;
    for (const Block& b : blocks(sight.mask)) {
      attend_block(out, q, whole[0], whole[1], masked(b, 0, sight, q));
    }
    return out;
  }

  Tensor backward(QuerySide& side, const Tensor& k, const Tensor& v,
                  const Sight& sight) const override {  // (2)
    const Tensor whole = gather(k, v);
    const CategoryScope scope(Category::kCommunication);
    const Tensor sums = at::zeros(whole.sizes(), whole.options().dtype(type_of_sums(whole)));
    for (const Block& b : blocks(sight.mask)) {
      attend_block_backward(side, whole[0], whole[1], sums, masked(b, 0, sight, side.q));
    }
    return scatter_sum(sums);
  }

 private:
  std::vector<Block> blocks(Mask mask) const {
    const Part mine = tokens_of(rank()), queries{0, mine.extent};
    if (mask == Mask::kNone) {
      const Part last = tokens_of(size() - 1);
      return {{queries, {0, last.offset + last.extent}}};
    }
    return {{queries, mine, true}, {queries, {0, mine.offset}}};
  }

  /// My keys and values with those of all: (2, B, Nkv, S, D).
  Tensor gather(const Tensor& k, const Tensor& v) const {
    const CategoryScope scope(Category::kCommunication);
    const Tensor mine = packed(k, v);
    if (size() == 1) return mine;
    const Tensor all = raw::all_gather(padded_to_longest(mine).unsqueeze(0), group(), 0);
    Tensors parts;
    for (int64_t r = 0; r < size(); ++r) {
      parts.push_back(all[r].narrow(kSeq, 0, tokens_of(r).extent));
    }
    return at::cat(parts, kSeq);
  }

  /// My part of the sums over ranks.
  Tensor scatter_sum(const Tensor& sums) const {
    if (size() == 1) return sums;
    Tensors parts;
    for (int64_t r = 0; r < size(); ++r) {
      const Part p = tokens_of(r);
      parts.push_back(padded_to_longest(sums.narrow(kSeq, p.offset, p.extent)));
    }
    const Tensor mine = raw::reduce_scatter(at::stack(parts), group(), 0)[0];
    return mine.narrow(kSeq, 0, tokens_of(rank()).extent);
  }

  Tensor padded_to_longest(const Tensor& t) const {
    const int64_t more = tokens_of(0).extent - t.size(kSeq);
    return more == 0 ? t : at::constant_pad_nd(t, {0, 0, 0, more}, 0);
  }
};

}  // namespace

std::unique_ptr<AttentionParallel> make_all_gather_attention(const AttentionSetup& setup) {
  return std::make_unique<AllGatherAttention>(setup);
}

}  // namespace kuafu
