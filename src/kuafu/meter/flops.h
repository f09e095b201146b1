// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kuafu/base/counts.h"

namespace kuafu {

/// FLOPs by formula; a multiply-add is two. Element-wise work (norms, GELU, softmax outside
/// attention, optimizers) counts as none: it is limited by memory, so its bytes are what is booked.
namespace flops {

inline constexpr const char* kWhat = "model FLOPs";
inline constexpr const char* kOptimizer = "optimizer FLOPs";

/// (R, K) x (K, M): 2 R K M.
constexpr int64_t matmul(int64_t r, int64_t k, int64_t m) {
  return product_of_counts({2, r, k, m}, kWhat);
}

/// Extents of one attention call.
struct AttentionExtents {
  int64_t batch, heads, queries, keys, head_dim;
  bool is_causal;
};

/// Scores and weighted values: 4 B N S T D; half of it under a causal mask.
constexpr int64_t attention(const AttentionExtents& a) {
  const int64_t all =
      product_of_counts({4, a.batch, a.heads, a.queries, a.keys, a.head_dim}, kWhat);
  return a.is_causal ? all / 2 : all;
}

/// Twice the forward: four products for two. The flash kernel's fifth, which rebuilds the scores,
/// is the kernel's own recomputation and no model FLOPs.
constexpr int64_t attention_backward(const AttentionExtents& a) {
  return product_of_counts({2, attention(a)}, kWhat);
}

/// Newton-Schulz on (R, C), m the smaller of both and M the larger: an iteration is X X^T, the
/// square of that, and its product with X: 2 m^2 (2 M + m). The optimizer's, not the model's.
constexpr int64_t newton_schulz(int64_t r, int64_t c, int64_t iterations) {
  const int64_t small = std::min(r, c), large = std::max(r, c);
  return product_of_counts({iterations, 2, small, small, 2 * large + small}, kOptimizer);
}

}  // namespace flops

/// Counts FLOPs of this thread by watching LibTorch's dispatcher, independently of the formulas the
/// ops book: leaf ops only (mm, addmm, bmm, baddbmm, the flash kernels), from their operand shapes.
/// For tests; costs microseconds an op.
class FlopWatcher {
 public:
  FlopWatcher();
  ~FlopWatcher();
  FlopWatcher(const FlopWatcher&) = delete;
  FlopWatcher& operator=(const FlopWatcher&) = delete;

  int64_t total() const;
  /// By op name ("aten::mm").
  const std::map<std::string, int64_t>& by_op() const;
  /// Calls of every op seen, leaf or not.
  const std::map<std::string, int64_t>& calls() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace kuafu
