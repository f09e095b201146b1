// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kuafu/parallel/sequence/interface.h"

// Attention over a whole sample, as its formula is written: what sequence modes are held against.
namespace kuafu::conformance {

/// One attention: whole extents, mask, what is kept, and the type of its inputs.
struct Attended {
  AttentionShape shape;
  Recompute recompute = Recompute::kNone;
  at::ScalarType dtype = at::kDouble;
  bool is_inside_documents = false;  ///< of documents_of(shape); the mask is causal

  /// "causal, inside documents, selective recomputation"
  std::string name() const;
};

/// "B 2, N 4, Nkv 2, D 4, S 7"
std::string to_string(const AttentionShape& s);

/// (B, S) i64: where the document of each position begins. They end at other positions in each sample,
/// some after one token.
Tensor documents_of(const AttentionShape& s);

/// q, dout (B, N, S, D); k, v (B, Nkv, S, D), over memory (B, S, *, D), in the order of positions; f64
/// numbers that the type can hold.
struct AttentionInputs {
  explicit AttentionInputs(const Attended& a);
  Tensor q, k, v, dout;
};

struct AttentionResult {
  Tensor out, dq, dk, dv;
};

/// In plain ATen and f64, and the sums of the absolute terms of each element: what its rounding is
/// measured on.
struct WholeAttention {
  AttentionResult values, terms;
};
WholeAttention whole_attention(const Attended& a);

}  // namespace kuafu::conformance
