// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

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
/// softmax(q k^T / sqrt(D)) v without materialising S x T. q (B, N, S, D); k, v (B, Nkv, T, D), any
/// strides; Nkv divides N and query head n reads key-value head n / (N / Nkv), without a copy.
/// T = S where causal. Rows without keys: out zero, lse -infinity. [Ainslie et al., arXiv 2305.13245]
/// mask (B, 1, S, T) in the type of q: 0, or -infinity where a key is hidden; where causal it hides
/// later keys too. FLOPs are those of the whole causal or full rectangle.
AttentionOut attention(const Tensor& q, const Tensor& k, const Tensor& v, bool is_causal,
                       const Tensor& mask = {});
struct AttentionGrads {
  Tensor dq, dk, dv;
};
/// `saved` may be the merged result of more keys than k: then dk, dv are those of these keys, and
/// dq the part of them.
AttentionGrads attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                  const Tensor& v, const AttentionOut& saved, bool is_causal,
                                  const Tensor& mask = {});
/// The mask (B, 1, S, T) of causal attention inside documents: the query at position i sees keys at
/// positions from first[i] to i. first (B, positions of a sample) i64; `queries` and `keys`:
/// positions of the S queries and T keys.
Tensor document_mask(const Tensor& first, at::IntArrayRef queries, at::IntArrayRef keys,
                     at::ScalarType type);
/// into = attention to the keys of `into` and of `part`, which must differ: lse = log(e^a + e^b),
/// out = e^(a - lse) out_a + e^(b - lse) out_b. `into` is in the accumulator type (f32 for half
/// precision), `part` in any; an empty `into` takes part's tensors, widened. The caller rounds the
/// final out to the type of q. [Milakov & Gimelshein, arXiv 1805.02867, section 3.1]
void attention_merge(AttentionOut& into, const AttentionOut& part);

/// Turns the pairs (d, d + D/2) of x (B, N, S, D) by positions[s] base^(-2d/D) radians; backwards
/// if inverse, which is the gradient. positions (S) i64. Any strides; the result has x's memory
/// order. Angles are f64. [Su et al., arXiv 2104.09864, equation 34; pairs as in GPT-NeoX]
Tensor rope(const Tensor& x, const Tensor& positions, double base, bool is_inverse);

/// (..., M) -> (M): the sum of all rows, in order, in f64; the gradient of a bias.
Tensor sum_rows(const Tensor& x);

struct NormOut {
  Tensor y, mean, rstd;  // y like x; mean, rstd (R)
};
/// y = (x - mean) rstd * weight + bias over the last dim.
NormOut layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double epsilon);
struct NormGrads {
  Tensor dx, dweight, dbias;
};
/// `residual`, here and below: the gradient of x's use beside the norm, like x; it is added to dx
/// in the same pass. Undefined: none.
NormGrads layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& mean,
                              const Tensor& rstd, const Tensor& weight,
                              const Tensor& residual = {});

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
                              int64_t hidden, const Tensor& residual = {});

struct RmsOut {
  Tensor y, rstd;  // y like x; rstd (R)
};
/// y = x rstd * weight over the last dim, rstd = (mean x^2 + epsilon)^(-1/2).
/// [Zhang & Sennrich, arXiv 1910.07467, equation 4]
RmsOut rms_norm(const Tensor& x, const Tensor& weight, double epsilon);
struct RmsGrads {
  Tensor dx, dweight;
};
RmsGrads rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                           const Tensor& weight, const Tensor& residual = {});

// RMS norm where the last dim is sharded, in two halves around an all-reduce:
/// (R): sum over my part of the last dim of x^2.
Tensor rms_moments(const Tensor& x);
/// y from moments summed over all shards; H is the whole extent.
RmsOut rms_apply(const Tensor& x, const Tensor& moments, const Tensor& weight, int64_t hidden,
                 double epsilon);
/// (R): my part of sum(dy w xhat).
Tensor rms_backward_moments(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                            const Tensor& weight);
RmsGrads rms_backward_apply(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                            const Tensor& weight, const Tensor& moments, int64_t hidden,
                            const Tensor& residual = {});

/// gelu with the tanh approximation, and its gradient.
Tensor gelu(const Tensor& x);
Tensor gelu_backward(const Tensor& dy, const Tensor& x);

/// x/2 (1 + erf(x / sqrt(2))), and its gradient. [Hendrycks & Gimpel, arXiv 1606.08415, section 2]
Tensor gelu_exact(const Tensor& x);
Tensor gelu_exact_backward(const Tensor& dy, const Tensor& x);

/// max(x, 0), and its gradient by the output y: dy where y > 0, else 0.
Tensor relu(const Tensor& x);
Tensor relu_backward(const Tensor& dy, const Tensor& y);

/// silu(gate) * up of x (..., 2 F) -> (..., F); column 2f is a gate, 2f + 1 its up, so that a shard
/// of any even number of columns holds whole pairs. silu(g) = g / (1 + e^-g).
/// [Shazeer, arXiv 2002.05202, equation 6]
Tensor swiglu(const Tensor& x);
Tensor swiglu_backward(const Tensor& dy, const Tensor& x);

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

/// One AdamW step in place [Loshchilov & Hutter, 2019, algorithm 2]; t counts from 1. The gradient
/// is `grad` times grad_factor, multiplied in the type of the value.
struct AdamWArgs {
  double lr, beta1, beta2, epsilon, weight_decay;
  int64_t t;
  double grad_factor = 1;
};
void adamw(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args);
/// velocity = momentum velocity + (grad_factor grad + weight_decay value); value -= lr velocity.
struct SgdArgs {
  double lr, momentum, weight_decay;
  double grad_factor = 1;
  double clip_elements = 0;  ///< of lars, which reads it alone; 0: off
};
void sgd(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args);
/// Adam: the same with weight_decay times the value in the gradient instead.
void adam(Tensor& value, const Tensor& grad, Tensor& m, Tensor& v, const AdamWArgs& args);
/// The same velocity as sgd's; value -= lr (grad_factor grad + weight_decay value + momentum
/// velocity).
void nesterov(Tensor& value, const Tensor& grad, Tensor& velocity, const SgdArgs& args);

/// Where the elements of a contiguous piece lie among the layers of their parameter (LayerSplit).
struct LayerRun {
  int64_t first = 0;    ///< element of the shard, row-major, where the piece begins
  int64_t columns = 1;  ///< of a row of the shard
  int64_t stacked =
      0;  ///< elements of the shard in one index of dim 0, where that is a layer; or 0
  int64_t parts = 1, width = 1;
  int64_t column = 0;  ///< of the parameter, where the shard's first column is
  int64_t layers = 1;  ///< of which the shard has something, from the first on
};
struct LambArgs {
  double beta1, beta2, epsilon, weight_decay;
  int64_t t;  ///< of the bias correction, from 1; 0: none is made
  double grad_factor = 1;
  bool keeps_direction = false;  ///< r is left in the place of the gradient, which is of its type
};
/// Sums of squares of the value and of grad_factor grad + weight_decay value by layer, (layers, 2)
/// f64.
Tensor lars_norms(const Tensor& value, const Tensor& grad, double grad_factor, const LayerRun& run,
                  double weight_decay = 0);
/// velocity = momentum velocity + rates[layer] x; value -= lr velocity, x = grad_factor grad +
/// weight_decay value, each element in -clip_elements .. clip_elements. Rates (layers[, 2: with lr]) f64.
void lars(Tensor& value, const Tensor& grad, Tensor& velocity, const Tensor& rates,
          const SgdArgs& args, const LayerRun& run);
/// Newton-Schulz of every matrix of u (R, C), like u: X = U / (|U| + least_norm), of U^T where that
/// is wider, then X = a X + (b A + c A^2) X with A = X X^T for each a, b, c; in the end scale X.
/// [Jordan et al., "Muon", 2024, algorithm 2]
struct NewtonSchulzArgs {
  std::vector<double> coefficients;  ///< three an iteration
  double least_norm;
  int64_t parts = 1;  ///< matrices side by side, in turns of
  int64_t width = 1;  ///< so many columns of each; not read of one
  double scale = 1;
};
Tensor newton_schulz(const Tensor& u, const NewtonSchulzArgs& args);
/// velocity = momentum velocity + grad_factor grad
void momentum(Tensor& velocity, const Tensor& grad, double momentum, double grad_factor);
/// grad_factor grad + momentum velocity, like the velocity: Nesterov's.
Tensor momentum_ahead(const Tensor& velocity, const Tensor& grad, double momentum,
                      double grad_factor);
/// value = (1 - lr weight_decay) value - lr step
void decayed_step(Tensor& value, const Tensor& step, double lr, double weight_decay);
/// Sum of squares of all elements as an f64 scalar tensor on the same device.
Tensor sum_of_squares(const Tensor& x);

}  // namespace kuafu::ops
