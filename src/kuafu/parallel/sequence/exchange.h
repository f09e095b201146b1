// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/comm/communicator.h"
#include "kuafu/mesh/mesh.h"
#include "kuafu/mesh/parts.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

/// Re-shards tensors between tokens and heads over the axis "sequence" of n ranks, whose parts of
/// the S tokens may differ by one. Several tensors travel as one message.
///
///              (B, N, S/sequence, D)                          (B, N/sequence, S, D)
///   rank 0     all heads of tokens 0 ..      <-- n = 2 -->    heads 0 .. N/2 of all tokens
///   rank 1     all heads of the others                        the other heads of all tokens
class HeadExchange {
 public:
  HeadExchange(const Mesh& mesh, int64_t sequence) : mesh_(mesh), sequence_(sequence) {}

  /// My tokens.
  Part tokens() const { return tokens_of(mesh_.coord("sequence")); }
  /// Tensors (B, N, S/sequence, D), each with its N -> (B, sum of their N/n, S, D). Where n is a
  /// multiple of N each head goes to n/N neighbouring ranks, and counts as one.
  Tensor to_heads(const Tensors& parts) const;
  /// Tensors (B, my heads, S, D) -> each (B, heads[i], S/sequence, D); copies of a head are summed.
  Tensors to_tokens(const Tensors& parts, const std::vector<int64_t>& heads) const;

 private:
  int64_t size() const { return mesh_.size("sequence"); }
  Part tokens_of(int64_t r) const { return nth_part(sequence_, size(), r); }
  /// Elements per rank of a message in which each token takes `unit`.
  Splits splits(int64_t unit, bool is_to_heads) const;

  const Mesh& mesh_;
  int64_t sequence_;
};

}  // namespace kuafu
