// A sequence mode: attention where each rank holds a part of every sample's tokens. In this one the
// ranks take turns: each sends its keys and values to all others, which attend to them.
//
// Picture (n ranks along the axis "sequence"; rank r has queries q_r, keys k_r, values v_r)
//
//   turn 0    rank 0 sends (k_0, v_0)    all ranks attend to them
//   turn 1    rank 1 sends (k_1, v_1)    causal: rank 0 does not look, they are of later tokens
//
// Math, rank r
//   forward     out = softmax(q_r [k_0 .. k_(n-1)]^T / sqrt(D)) [v_0 .. v_(n-1)], block by block
//   backward    dq_r = sum_j of its part in block j;  dk_j, dv_j = sums over ranks, back to rank j
//
// Cost, elements received, |j| = 2 B Nkv D (tokens of rank j): forward every |j| but my own;
// backward the same again, and |j| of sums for every turn but that of the rank before me, whose
// sums start with mine and go on rank by rank.
//
// What to change first: attend to my own block while that of another rank is on its way.

#include <memory>

#include <ATen/ATen.h>
#include <torch/version.h>

#include "kuafu/engine/plugin.h"
#include "kuafu/meter/allocator.h"
#include "kuafu/parallel/sequence/blocks.h"
#include "kuafu/tensor/collectives.h"

namespace {

using namespace kuafu;

/// BlockAttention knows what is kept for backward, and what recomputation makes again.
class MySequence : public kuafu::BlockAttention {
 public:
  using BlockAttention::BlockAttention;

  // `s` has the extents of this rank, but the sequence is that of the whole sample.
  AttentionCost cost(const AttentionShape& s) const override {
    AttentionCost cost;
    for (int64_t turn = 0; turn < size() && size() > 1; ++turn) {
      const int64_t block = 2 * s.batch * s.kv_heads * s.head_dim * tokens_of(turn).extent;
      if (turn != rank()) cost.forward += block;
      if ((turn + 1) % size() != rank()) cost.backward_sums += block;
    }
    // With selective recomputation backward runs the forward again.
    cost.backward = (is_selective() ? 2 : 1) * cost.forward + cost.backward_sums;
    return cost;
  }

 protected:
  // Where shapes come from: q is (B, N, S/sequence, D), k and v (B, Nkv, S/sequence, D). Rank r has
  // tokens_of(r) of the S tokens of a sample, and the ranks need not divide S.
  ops::AttentionOut forward(const Tensor& q, const Tensor& k, const Tensor& v,
                            const Sight& sight) const override {
    ops::AttentionOut out;
    for (int64_t turn = 0; turn < size(); ++turn) {
      const Tensor held = sent_by(turn, k, v);
      if (sees(turn, sight)) attend_block(out, q, held[0], held[1], block(turn, sight, q));
    }
    return out;
  }

  // Fills side.dq; returns (dk, dv) of my tokens, as sums (2, B, Nkv, S/sequence, D).
  Tensor backward(QuerySide& side, const Tensor& k, const Tensor& v,
                  const Sight& sight) const override {
    Tensor mine;
    for (int64_t turn = 0; turn < size(); ++turn) {
      const Tensor held = sent_by(turn, k, v);
      const CategoryScope scope(Category::kCommunication);
      const Tensor sums = empty_pack(k, tokens_of(turn).extent, type_of_sums(k)).zero_();
      if (sees(turn, sight)) {
        attend_block_backward(side, held[0], held[1], sums, block(turn, sight, side.q));
      }
      if (size() > 1) raw::reduce(sums, group(), turn);
      if (turn == rank()) mine = sums;
    }
    return mine;
  }

 private:
  bool sees(int64_t turn, const Sight& sight) const { return !sight.is_causal() || turn <= rank(); }

  /// My queries against the keys of a turn: causal against my own, and masked where documents are
  /// kept apart (data.document_mask).
  Block block(int64_t turn, const Sight& sight, const Tensor& q) const {
    const Block all = {{0, tokens_of(rank()).extent},
                       {0, tokens_of(turn).extent},
                       sight.is_causal() && turn == rank()};
    return masked(all, tokens_of(turn).offset, sight, q);
  }

  /// (k, v) of one rank on all of them.
  Tensor sent_by(int64_t turn, const Tensor& k, const Tensor& v) const {
    const CategoryScope scope(Category::kCommunication);
    const Tensor held =
        turn == rank() ? packed(k, v) : empty_pack(k, tokens_of(turn).extent, k.scalar_type());
    return size() == 1 ? held : raw::broadcast(held, group(), turn);
  }
};

void add(Registries& registries) {
  registries.sequence.add(
      "my_sequence", "ranks send their keys and values in turn: my own mode",
      [](const AttentionSetup& setup) { return std::make_unique<MySequence>(setup); });
}

}  // namespace

extern "C" const kuafu::PluginInfo* kuafu_plugin() {
  static const kuafu::PluginInfo kInfo = {.abi = KUAFU_PLUGIN_ABI,
                                          .torch = TORCH_VERSION,
                                          .name = "my_sequence",
                                          .version = "1",
                                          .add = add};
  return &kInfo;
}
