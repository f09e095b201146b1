// SPDX-License-Identifier: Apache-2.0
//
// Ulysses: tokens are exchanged for heads, attention is local, heads for tokens again.
//                                                           [Jacobs et al., arXiv 2309.14509]
//
// Picture (n = 2, heads a b c d, sequence halves 0 1).
//
//   rank 0: a0 b0 c0 d0   -- all-to-all ->   a0 a1 b0 b1   attention   -- all-to-all -> a0 b0 c0 d0
//   rank 1: a1 b1 c1 d1                      c0 c1 d0 d1   per head                     a1 b1 c1 d1
//
// Math, rank r, m = N / n query heads; the ranks that share a key-value head each get a copy:
//   (1) q, k, v of my heads and all tokens = exchange(q, k, v);  out = attention;  exchange back
//   (2) dout = exchange(dout);  dq, dk, dv of my heads;  exchange back, copies of a head summed
//
// Cost, elements received, M = m + 2 max(Nkv / n, 1), L my tokens:
//   (1) B D (M (S - L) + m L (n-1))        (2) B D (m (S - L) + M L (n-1))
// What a rank exchanges falls with n, unlike the rings'.

#include <ATen/ATen.h>

#include "kuafu/base/errors.h"
#include "kuafu/mesh/parts.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/sequence/exchange.h"
#include "kuafu/parallel/sequence/sight.h"
#include "kuafu/tensor/differentiable.h"
#include "kuafu/tensor/ops.h"

namespace kuafu {
namespace {

class UlyssesAttention : public DocumentAttention {
 public:
  explicit UlyssesAttention(const AttentionSetup& setup)
      : exchange_(setup.mesh, setup.sequence),
        n_(setup.mesh.size("sequence")),
        is_selective_(setup.recompute == Recompute::kSelective) {}

  void check(int64_t heads, int64_t kv_heads) const override {
    const bool kv_fits = kv_heads % n_ == 0 || n_ % kv_heads == 0;
    if (heads % n_ == 0 && kv_fits) return;
    const bool is_kv = heads % n_ == 0;
    const int64_t given = is_kv ? kv_heads : heads;
    throw NotDivisible(
        text(is_kv ? "model.kv_heads" : "model.heads", ": a rank's ", given,
             is_kv ? " key-value" : "", " heads are dealt by parallel.sequence.mode ",
             "= \"ulysses\" to ", n_, " ranks (parallel.sequence.size), which ",
             is_kv ? "neither divide them nor are divided by them" : "do not divide them",
             "; nearest: parallel.sequence.mode = \"ring\""),
        "heads", given, "sequence");
  }

  AttentionCost cost(const AttentionShape& s) const override {
    const int64_t mine = exchange_.tokens().extent, others = s.sequence - mine;
    const int64_t m = s.heads / n_, all = m + 2 * std::max<int64_t>(s.kv_heads / n_, 1);
    const int64_t unit = s.batch * s.head_dim;
    return {unit * (all * others + m * mine * (n_ - 1)),
            unit * (m * others + all * mine * (n_ - 1)), 0};
  }

  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v,
                const Sight& sight) const override {
    const bool again = is_selective_;
    const int64_t kv_heads = k.size(1);
    const Forward forward = [&](const Tensors& in) -> ForwardResult {  // (1)
      const Tensor mine = exchange_.to_heads(in);
      const Tensors h = split(mine, q.size(1));
      const auto [out, lse] = attention(h, sight);
      const Tensor back = exchange_.to_tokens({out}, {q.size(1)})[0];
      for (const Tensor& t : {mine, back}) recategorise(t, current_category());
      if (again) return {{back}, {mine}};
      return {{back}, {mine, out, lse}};
    };
    const Backward backward = [this, sight, again, heads = q.size(1), kv_heads](
                                  const Tensors& saved, const Tensors& grads,
                                  const std::vector<bool>&) -> Tensors {  // (2)
      const Tensors h = split(saved[0], heads);
      ops::AttentionOut out;
      if (again) {
        const RecomputeScope scope;
        out = attention(h, sight);
      } else {
        out = {saved[1], saved[2]};
      }
      const Tensor dout = exchange_.to_heads({grads[0]});
      const auto [dq, dk, dv] =
          ops::attention_backward(dout, h[0], h[1], h[2], out, sight.is_causal(), mask(h, sight));
      return exchange_.to_tokens({dq, dk, dv}, {heads, kv_heads, kv_heads});
    };
    return differentiable({q, k, v}, forward, backward)[0];
  }

 private:
  /// q, k, v of my heads, side by side.
  Tensors split(const Tensor& mine, int64_t heads) const {
    const int64_t m = heads / n_, kv = (mine.size(1) - m) / 2;
    return {mine.narrow(1, 0, m), mine.narrow(1, m, kv), mine.narrow(1, m + kv, kv)};
  }

  static Tensor mask(const Tensors& h, const Sight& sight) {
    return sight.inside(h[0].size(2), h[0].scalar_type());
  }
  static ops::AttentionOut attention(const Tensors& h, const Sight& sight) {
    return ops::attention(h[0], h[1], h[2], sight.is_causal(), mask(h, sight));
  }

  HeadExchange exchange_;
  int64_t n_;
  bool is_selective_;
};

}  // namespace

std::unique_ptr<AttentionParallel> make_ulysses_attention(const AttentionSetup& setup) {
  return std::make_unique<UlyssesAttention>(setup);
}

}  // namespace kuafu
