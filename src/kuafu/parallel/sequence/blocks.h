// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/mesh/parts.h"
#include "kuafu/parallel/sequence/interface.h"
#include "kuafu/tensor/ops.h"

// Attention of a rank's queries to the keys of one rank at a time, for ring and all-gather: with
// the final out and lse of all blocks, the backward of each block alone is exact.
// [Dao et al., arXiv 2205.14135, appendix B.2]
namespace kuafu {

/// Rows of queries that see rows of keys, all of them or causally.
struct Block {
  Part queries, keys;
  bool is_causal = false;
};

/// What half-precision sums are kept in: f32; f64 for f64.
Tensor zeros_of_sums(at::IntArrayRef shape, const Tensor& like);

/// Merges the attention of q to a block of k, v into `into`; the first block has all queries.
void attend_block(ops::AttentionOut& into, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Block& block);

/// One rank's side of a backward: dout, its own q, the final out and lse, and the sum dq.
struct QuerySide {
  Tensor dout, q;
  ops::AttentionOut saved;
  Tensor dq;  ///< in the type of sums
};
/// Adds to side.dq and to dk, dv, which have the shape of k and the type of sums.
void attend_block_backward(QuerySide& side, const Tensor& k, const Tensor& v, const Tensor& dk,
                           const Tensor& dv, const Block& block);

/// Attention whose core is made of blocks: what is kept and made again, once for ring and
/// all-gather. The result of `forward` has its out in the type of sums.
class BlockAttention : public AttentionParallel {
 public:
  explicit BlockAttention(const AttentionSetup& setup) : setup_(setup) {}
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const final;

 protected:
  struct KeyGrads {
    Tensor dk, dv;
  };
  virtual ops::AttentionOut forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                    Mask mask) const = 0;
  /// Fills side.dq.
  virtual KeyGrads backward(QuerySide& side, const Tensor& k, const Tensor& v, Mask mask) const = 0;

  Communicator& group() const { return setup_.mesh.comm("sequence"); }
  int64_t size() const { return setup_.mesh.size("sequence"); }
  int64_t rank() const { return setup_.mesh.coord("sequence"); }
  Part tokens_of(int64_t r) const { return nth_part(setup_.sequence, size(), r); }

 private:
  AttentionSetup setup_;
};

}  // namespace kuafu
