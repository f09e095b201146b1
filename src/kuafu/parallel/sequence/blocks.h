// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/mesh/parts.h"
#include "kuafu/parallel/sequence/sight.h"
#include "kuafu/tensor/ops.h"

// Attention of a rank's queries to the keys of one rank at a time, for ring and all-gather: with
// the final out and lse of all blocks, the backward of each block alone is exact.
// [Dao et al., arXiv 2205.14135, appendix B.2]
namespace kuafu {

/// Rows of queries that see rows of keys, all of them or causally.
struct Block {
  Part queries, keys;
  bool is_causal = false;
  Tensor mask = {};  ///< of ops::attention; undefined: none
};

/// How many of a rank's tokens are its early chunk in zig-zag order, and the order: rank r of n has
/// chunks r and 2n-1-r of 2n, which lie beside each other.
///
///   zigzag_order(8, 2)    0 1 6 7 | 2 3 4 5
constexpr int64_t early_tokens(int64_t tokens) { return (tokens + 1) / 2; }
std::vector<int64_t> zigzag_order(int64_t sequence, int64_t n);

/// The type that sums are kept in: f64 for f64, else f32.
at::ScalarType type_of_sums(const Tensor& t);
/// (k, v) as one contiguous tensor (2, B, Nkv, S, D): what travels.
Tensor packed(const Tensor& k, const Tensor& v);
/// Room for as many tokens in that type.
Tensor empty_pack(const Tensor& k, int64_t tokens, at::ScalarType type);

/// Merges the attention of q to a block of k, v into `into`; the first block has all queries.
void attend_block(ops::AttentionOut& into, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Block& block);

/// A message to the next rank of a group and one from the rank before, both under way.
struct Passing {
  Tensor out, in;
  Work work;
  /// What arrived, once both are done.
  Tensor finish();
};
/// Either may be none.
Passing pass(Communicator& c, const Tensor& out, const Tensor& in);

/// One rank's side of a backward: dout, its own q, the final out and lse, and the sum dq.
struct QuerySide {
  Tensor dout, q;
  ops::AttentionOut saved;
  Tensor dq = {};  ///< in the type of sums; none before the first block, which has all queries
};
/// Adds to side.dq, and to the sums (2, B, Nkv, S, D) of (dk, dv).
void attend_block_backward(QuerySide& side, const Tensor& k, const Tensor& v, const Tensor& sums,
                           const Block& block);

/// Attention whose core is made of blocks: what is kept and made again, once for ring and
/// all-gather. The result of `forward` has its out in the type of sums.
class BlockAttention : public DocumentAttention {
 public:
  explicit BlockAttention(const AttentionSetup& setup) : setup_(setup) {}

 protected:
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Sight& sight) const final;
  virtual ops::AttentionOut forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Sight& sight) const = 0;
  /// Fills side.dq; returns my (dk, dv) as sums (2, B, Nkv, S/sequence, D).
  virtual Tensor backward(QuerySide& side, const Tensor& k, const Tensor& v,
                          const Sight& sight) const = 0;
  /// The block with its mask where there are documents: my queries, keys of places from `begin` of
  /// the sharded sequence on.
  Block masked(Block block, int64_t begin, const Sight& sight, const Tensor& q) const;

  Communicator& group() const { return setup_.mesh.comm("sequence"); }
  bool is_selective() const { return setup_.recompute == Recompute::kSelective; }
  int64_t sequence() const { return setup_.sequence; }
  int64_t size() const { return setup_.mesh.size("sequence"); }
  int64_t rank() const { return setup_.mesh.coord("sequence"); }
  Part tokens_of(int64_t r) const { return nth_part(setup_.sequence, size(), r); }

 private:
  /// Positions at the places of a sharded sequence.
  std::vector<int64_t> positions(const Part& places) const;

  AttentionSetup setup_;
};

}  // namespace kuafu
