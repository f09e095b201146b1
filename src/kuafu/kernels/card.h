// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/kernels/layer_updates.h"
#include "kuafu/kernels/updates.h"

// Loops of this folder on a card: pointers are to its memory, and work is started on `stream`, a
// cudaStream_t, in whose order it runs. Every function returns a cudaError_t.
namespace kuafu::kernels::card {

/// Whether this build has them; without, none may be called.
bool is_built();

/// What an element of an array is.
enum class Element : uint8_t { kF64, kF32, kBF16, kF16 };

/// Arguments of adam: f64 with gradients of f64, or f32 with gradients of f32, bf16 or f16.
struct AdamCall {
  Element kind, grad_kind;
  void* w;
  const void* grad;
  void *m, *v;
  int64_t count;
};
int adam(Decay decay, const AdamCall& call, const AdamWFactors& factors, void* stream);

struct SgdCall {
  Element kind, grad_kind;
  void* w;
  const void* grad;
  void* velocity;
  int64_t count;
};
int sgd(Momentum how, const SgdCall& call, const SgdFactors& factors, void* stream);

/// LAMB and LARS, of kernels/layer_updates.h. A run has at most kMostLayers layers here.
inline constexpr int64_t kMostLayers = 4;

/// The first pass: moments go on, and sums (layers, 2) are set, in f64, in an order that depends on the
/// sizes and on alignment alone. `partial` has room for 2 kMostLayers kPartials numbers.
int lamb_norms(const LayerRun& run, int64_t layers, const AdamCall& call,
               const LambFactors& factors, double* partial, double* sums, void* stream);
/// The second; without a gradient.
int lamb(const LayerRun& run, const AdamCall& call, const LambFactors& factors, const double* rates,
         void* stream);
int lars_norms(const LayerRun& run, int64_t layers, const SgdCall& call, const SgdFactors& factors,
               double* partial, double* sums, void* stream);
int lars(const LayerRun& run, const SgdCall& call, const SgdFactors& factors, const double* rates,
         void* stream);

/// sum = x_0^2 + x_1^2 + ..., in f64, in an order that depends on `count` and on alignment
/// alone. `partial` has room
/// for kPartials numbers.
inline constexpr int64_t kPartials = 1024;
int sum_of_squares(Element kind, const void* x, int64_t count, double* partial, double* sum,
                   void* stream);

/// Logits (rows, width), contiguous, of a shard of the vocabulary whose first column is `first`; the
/// first `columns` are no padding. Targets are (rows), -1: ignored.
struct Logits {
  Element kind;
  const void* x;
  const int64_t* targets;
  int64_t rows, width, columns, first, vocab;
};

/// A row's maximum, sum of exp(x - maximum), and logit of the target where it is here, else 0, in f64
/// for f64, else f32. An ignored row has 0, 1 (first = 0, else 0) and 0; a target that is no token of
/// the vocabulary a NaN.
int cross_entropy_stats(const Logits& logits, void* max, void* sumexp, void* target, void* stream);

/// dx = scale (exp(x - max) / sumexp - [column is the target]) in the type of x; 0 in padding and
/// ignored rows.
int cross_entropy_backward(const Logits& logits, const void* max, const void* sumexp, double scale,
                           void* dx, void* stream);

/// Heads of attention: one tensor (B, S, N, parts, D), contiguous, and `parts` of (B, S, N, D), each
/// with strides of its own for B, S and N, in elements.
inline constexpr int kMostParts = 4;
struct Heads {
  Element kind;
  int64_t batch, sequence, heads, parts, width;
};
struct HeadPart {
  void* data;
  int64_t of_batch, of_position, of_head;
};
int split_heads(const Heads& shape, const void* whole, const HeadPart* parts, void* stream);
int join_heads(const Heads& shape, void* whole, const HeadPart* parts, void* stream);

/// Rows (rows, width), contiguous.
struct RowMatrix {
  Element kind;
  int64_t rows, width;
};

/// y[r][c] += bias[c], of one type, rounded once.
int add_bias(const RowMatrix& shape, void* y, const void* bias, void* stream);

/// Sums over rows that need room: kRowParts x width numbers of f64 for f64, else f32.
inline constexpr int64_t kRowParts = 512;

/// sums[c] = x[0][c] + x[1][c] + ..., in the type of x.
int sum_rows(const RowMatrix& shape, const void* x, void* partial, void* sums, void* stream);

/// y = (x - mean) rstd weight + bias over each row; mean and rstd (rows) in f64 for f64, else f32.
struct LayerNorm {
  const void *x, *weight, *bias;
  double epsilon;
  void *y, *mean, *rstd;
};
int layer_norm(const RowMatrix& shape, const LayerNorm& norm, void* stream);

/// dx (+ residual where there is one), dweight and dbias. `partial` has room for two sums over rows.
struct LayerNormBackward {
  const void *dy, *x, *mean, *rstd, *weight;
  const void* residual;  ///< null: none
  void *dx, *dweight, *dbias;
  void* partial;
};
int layer_norm_backward(const RowMatrix& shape, const LayerNormBackward& norm, void* stream);

}  // namespace kuafu::kernels::card
