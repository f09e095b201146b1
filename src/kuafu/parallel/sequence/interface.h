// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kuafu/base/registry.h"
#include "kuafu/mesh/layout.h"
#include "kuafu/plan/plan.h"
#include "kuafu/tensor/tensor.h"

namespace kuafu {

enum class Mask : uint8_t { kNone, kCausal };

/// Extents of one attention on this rank, but for the sequence, which is that of the whole sample.
struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, head_dim = 0, sequence = 0;
  Mask mask = Mask::kNone;
};

/// Elements one rank receives for one attention. `backward_sums` are those of `backward` that are
/// sums of gradients: half precision sends them in f32.
struct AttentionCost {
  int64_t forward = 0, backward = 0, backward_sums = 0;
  bool operator==(const AttentionCost&) const = default;
};

/// softmax(q k^T / sqrt(D)) v where the sequence may be sharded over the axis "sequence": rank i
/// holds nth_part(S, n, i) of the tokens, in the order that order() tells.
class AttentionParallel {
 public:
  virtual ~AttentionParallel() = default;
  /// q (B, N, S/sequence, D), k, v (B, Nkv, S/sequence, D), any strides -> like q. Nkv divides N.
  /// Differentiable.
  virtual Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, Mask mask) const = 0;
  /// The position in the sample of each place of the sharded sequence; empty: place = position.
  virtual std::vector<int64_t> order() const { return {}; }
  /// Throws NotDivisible where this many heads of a rank cannot be attended to.
  virtual void check(int64_t /*heads*/, int64_t /*kv_heads*/) const {}
  virtual AttentionCost cost(const AttentionShape&) const { return {}; }
  /// Causal attention inside documents: the query at position i sees keys at positions from first[i]
  /// to i. first (B, S) i64 of all positions of the samples, by position. Differentiable.
  /// @pre knows_documents()
  virtual Tensor attend_documents(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const Tensor& first) const;
  /// Plans with data.document_mask are refused to modes that do not.
  virtual bool knows_documents() const { return false; }
};

/// What a sequence mode is made for. The mesh need not be connected, only when attend is called.
struct AttentionSetup {
  const Mesh& mesh;
  int64_t sequence = 0;  ///< S of the samples
  Recompute recompute = Recompute::kNone;
};

/// A sequence mode as the registry knows it.
using MakeAttention = std::function<std::unique_ptr<AttentionParallel>(const AttentionSetup&)>;

/// Attention over a sequence that is whole on this rank. Under selective recomputation only q, k
/// and v are kept and the core runs again in backward. [Korthikanti et al., 2205.05198, section 5]
std::unique_ptr<AttentionParallel> make_local_attention(Recompute recompute);
/// Keys and values travel around a ring.
std::unique_ptr<AttentionParallel> make_ring_attention(const AttentionSetup& setup);
/// The same with early and late tokens paired, so that a causal mask loads all ranks alike.
std::unique_ptr<AttentionParallel> make_zigzag_attention(const AttentionSetup& setup);
/// Heads instead of tokens during attention.
std::unique_ptr<AttentionParallel> make_ulysses_attention(const AttentionSetup& setup);
/// All keys and values on every rank: the simple reference.
std::unique_ptr<AttentionParallel> make_all_gather_attention(const AttentionSetup& setup);

/// "none", "ring", "ring-zigzag", "ulysses", "all-gather".
void register_sequence_modes(Registry<MakeAttention>& modes);

}  // namespace kuafu
