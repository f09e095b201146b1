// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "kuafu/tensor/tensor.h"

// Own ops: each registered as kuafu::<name> with CPU, CUDA and Meta kernels, books FLOPs and bytes
// by the formula beside it (README.md lists them), and keeps op-internal scratch apart. None of
// these records autograd; layers wrap them in differentiable().
// B batch, S sequence, H hidden, N heads, D head dim, V vocab, R rows.
namespace kuafu::ops {

/// (R, K) x (K, M) -> (R, M). 2 R K M FLOPs. Either may be a transposed view.
Tensor matmul(const Tensor& a, const Tensor& b);
/// matmul, plus bias (M) added to every row, in one kernel where there is one.
Tensor matmul_bias(const Tensor& a, const Tensor& b, const Tensor& bias);
/// into += a x b
void matmul_add(Tensor& into, const Tensor& a, const Tensor& b);

struct AttentionOut {
  Tensor out;  // (B, N, S, D)
  Tensor lse;  // (B, N, S) log of the softmax denominators
};
/// softmax(q k^T / sqrt(D)) v without materialising S x S. q, k, v (B, N, S, D), any strides.
AttentionOut attention(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal);
struct AttentionGrads {
  Tensor dq, dk, dv;
};
AttentionGrads attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const AttentionOut& saved, bool is_causal);

struct NormOut {
  Tensor y, mean, rstd;  // y like x; mean, rstd (R)
};
/// y = (x - mean) rstd * weight + bias over the last dim.
NormOut layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon);
struct NormGrads {
  Tensor dx, dweight, dbias;
};
NormGrads layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight);

// Layer norm where the last dim is sharded, in two halves around an all-reduce:
/// (R, 2): sum over my part of the last dim of x and of x^2 ... see README for the stable form.
Tensor norm_moments(const Tensor& x);
/// y from moments summed over all shards; H is the whole extent.
NormOut norm_apply(const Tensor& x, const Tensor& moments, const Tensor& weight, const Tensor& bias,
                   int64_t hidden, double epsilon);
/// (R, 2): my part of sum(dy w) and sum(dy w xhat).
Tensor norm_backward_moments(const Tensor& dy, const Tensor& x, const Tensor& mean,
                             const Tensor& rstd, const Tensor& weight);
NormGrads norm_backward_apply(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight, const Tensor& moments,
                              int64_t hidden);

/// gelu with the tanh approximation, and its gradient.
Tensor gelu(const Tensor& x);
Tensor gelu_backward(const Tensor& dy, const Tensor& x);

/// Rows of my vocabulary shard: table (V/n, H) holding ids [first, first + V/n); zero for others.
/// ids (B, S) i64 -> (B, S, H).
Tensor embedding(const Tensor& ids, const Tensor& table, int64_t first);
/// (V/n, H): sums dy (B, S, H) by id, in id order of appearance (deterministic).
Tensor embedding_backward(const Tensor& dy, const Tensor& ids, int64_t first, int64_t rows);

// Cross entropy over a vocabulary shard holding columns [first, first + V/n); columns at or beyond
// `vocab` are padding and count as -infinity. logits (B, S, V/n), targets (B, S) i64, -1 = ignored.
struct LossStats {
  Tensor max;     // (B, S) over my columns
  Tensor sumexp;  // (B, S) sum of exp(logit - max)
  Tensor target;  // (B, S) the target's logit where it is mine, else 0
};
LossStats cross_entropy_stats(const Tensor& logits, const Tensor& targets, int64_t first,
                              int64_t vocab);
/// dlogits = (softmax - onehot) * scale; max and sumexp are those of the whole vocabulary.
Tensor cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& max,
                              const Tensor& sumexp, double scale, int64_t first, int64_t vocab);

/// Which elements of a global (B, S, H) tensor a shard holds, and the random site.
struct DropoutKey {
  uint64_t seed = 0, site = 0;
  int64_t step = 0;
  Shape global = {};  // (B, S, H)
  Shape offset = {};  // of my shard
};
/// x * mask / (1 - p); the mask is Philox(seed, site, step, global element): the same bits under
/// every layout and device. Applied again to dy for the gradient.
Tensor dropout(const Tensor& x, double p, const DropoutKey& key);

/// One AdamW step in place [Loshchilov & Hutter, 2019, algorithm 2]; t counts from 1.
struct AdamWArgs {
  double lr, beta1, beta2, epsilon, weight_decay;
  int64_t t;
};
void adamw(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args);
/// velocity = momentum velocity + (grad + weight_decay value); value -= lr velocity.
void sgd(Tensor& value, const Tensor& grad, Tensor& velocity, double lr, double momentum,
         double weight_decay);
/// Sum of squares of all elements as an f64 scalar tensor on the same device.
Tensor sum_of_squares(const Tensor& x);

}  // namespace kuafu::ops
