// SPDX-License-Identifier: Apache-2.0
//
// Ring self-attention: queries stay, keys and values travel.
//   [Li et al., arXiv 2105.13120, section 3.2; blockwise softmax: Liu et al., arXiv 2310.01889]
//
// Picture (n = 4). At step t rank r holds the block (k, v) of rank j = r - t and passes it on while
// it attends to it. Causal: blocks of later tokens are neither passed nor computed. Zig-zag: rank r
// has chunks r and 2n-1-r of 2n, so that a causal mask leaves every rank half of each other block.
//
//            t = 0  1  2  3      plain, causal      zig-zag, chunks      and sees of block j
//   rank 0       0  3  2  1      0                  0 7                  j = r: as far as causal
//   rank 1       1  0  3  2      1  0               1 6                  j < r: its early chunk
//   rank 2       2  1  0  3      2  1  0            2 5                  j > r: all of it, from the
//   rank 3       3  2  1  0      3  2  1  0         3 4                         late chunk of r
//
// Math, rank r, its scores s_j = q k_j^T / sqrt(D) against block j:
//   (1) lse = log sum_j e^(lse_j)      out = sum_j e^(lse_j - lse) out_j (ops::attention_merge) (2)
//   with that lse and out:  dq = sum_j dq_j;  dk_j, dv_j = sums over ranks, which follow the
//       block one step behind and after n - 1 steps are home.
//
// Cost, elements received, |t| = 2 B Nkv D (tokens of rank r - t): forward sum_{t=1}^{n-1} |t|,
// plain
//   causal to t = r; backward the same, and sum_{t=2}^{n} |t| of gradients. Selective: + forward.

#include <ATen/ATen.h>

#include "kuafu/parallel/sequence/blocks.h"

namespace kuafu {
namespace {

enum class Order : uint8_t { kPlain, kZigzag };

class RingAttention : public BlockAttention {
 public:
  RingAttention(const AttentionSetup& setup, Order order)
      : BlockAttention(setup), is_zigzag_(order == Order::kZigzag) {}

  std::vector<int64_t> order() const override {
    return is_zigzag_ ? zigzag_order(sequence(), size()) : std::vector<int64_t>{};
  }

  AttentionCost cost(const AttentionShape& s) const override {
    AttentionCost cost;
    const auto block = [&](int64_t t) {
      return 2 * s.batch * s.kv_heads * s.head_dim * tokens_of(owner(t)).extent;
    };
    for (int64_t t = 1; t < size(); ++t) cost.forward += holds(rank(), t, s.mask) ? block(t) : 0;
    for (int64_t t = 2; t <= size(); ++t) cost.backward_sums += block(t);
    cost.backward = (is_selective() ? 2 : 1) * cost.forward + cost.backward_sums;
    return cost;
  }

 protected:
  ops::AttentionOut forward(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Sight& sight) const override {  // (1)
    const Mask mask = sight.mask;
    ops::AttentionOut out;
    Tensor held = packed(k, v);
    for (int64_t t = 0; holds(rank(), t, mask); ++t) {
      Passing next = pass_keys(held, t, mask);
      attend_block(out, q, held[0], held[1], block(t, sight, q));
      held = next.finish();
    }
    return out;
  }

  Tensor backward(QuerySide& side, const Tensor& k, const Tensor& v,
                  const Sight& sight) const override {  // (2)
    const Mask mask = sight.mask;
    Tensor held = packed(k, v), own;
    const at::ScalarType type = type_of_sums(k);
    Passing following;
    for (int64_t t = 0; t < size(); ++t) {
      Passing next = pass_keys(held, t, mask);
      const Tensor sums = t <= 1 ? buffer(k, t, type).zero_() : following.finish();
      if (held.defined()) {
        attend_block_backward(side, held[0], held[1], sums, block(t, sight, side.q));
      }
      if (t == 0) own = sums;
      if (t > 0) following = pass(group(), sums, buffer(k, t + 1, type));
      held = next.finish();
    }
    return size() == 1 ? own : own.add_(following.finish());
  }

 private:
  int64_t owner(int64_t t) const { return (rank() + 2 * size() - t) % size(); }
  /// Whether rank r gets to see a block at step t.
  bool holds(int64_t r, int64_t t, Mask mask) const {
    return t < size() && (mask == Mask::kNone || is_zigzag_ || t <= r);
  }
  Block block(int64_t t, Mask mask) const {
    const int64_t mine = tokens_of(rank()).extent, theirs = tokens_of(owner(t)).extent;
    if (t == 0) return {{0, mine}, {0, mine}, mask == Mask::kCausal};
    if (mask == Mask::kNone || !is_zigzag_) return {{0, mine}, {0, theirs}};
    if (owner(t) < rank()) return {{0, mine}, {0, early_tokens(theirs)}};
    return {{early_tokens(mine), mine - early_tokens(mine)}, {0, theirs}};
  }
  Block block(int64_t t, const Sight& sight, const Tensor& q) const {
    return masked(block(t, sight.mask), tokens_of(owner(t)).offset, sight, q);
  }
  Tensor buffer(const Tensor& k, int64_t t, at::ScalarType type) const {
    return empty_pack(k, tokens_of(owner(t)).extent, type);
  }
  Passing pass_keys(const Tensor& held, int64_t t, Mask mask) const {
    const bool goes_on = holds((rank() + 1) % size(), t + 1, mask);
    Tensor in;
    if (holds(rank(), t + 1, mask)) in = buffer(held[0], t + 1, held.scalar_type());
    return pass(group(), goes_on ? held : Tensor(), in);
  }

  bool is_zigzag_;
};

}  // namespace

std::unique_ptr<AttentionParallel> make_ring_attention(const AttentionSetup& setup) {
  return std::make_unique<RingAttention>(setup, Order::kPlain);
}

std::unique_ptr<AttentionParallel> make_zigzag_attention(const AttentionSetup& setup) {
  return std::make_unique<RingAttention>(setup, Order::kZigzag);
}

}  // namespace kuafu
