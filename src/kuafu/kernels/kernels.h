// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Loops over plain host memory, free of LibTorch: what ATen lacks a fast kernel for. Every sum runs
// in a fixed order with f64 accumulators. R rows of H elements, row-major.
namespace kuafu::kernels {

/// Standard normals of the counters [first, first + count): CounterRandom(seed, site).normal(i),
/// bit for bit, a block of counters at a time.
void normals(uint64_t seed, uint64_t site, uint64_t first, int64_t count, double* out);
/// The same times `std`, rounded to f32 as static_cast<float>(std * normal(i)) is, several times as
/// fast. @pre std >= 0.
void scaled_normals(uint64_t seed, uint64_t site, uint64_t first, int64_t count, double std,
                    float* out);

/// Where dropout draws from.
struct DropoutStream {
  uint64_t seed, site;
  uint32_t threshold;  ///< an element stays where its 32 bits are not below this
};
/// y[i] = x[i] * scale where element first + i stays, else 0. The bits of element e are word e % 4
/// of Philox block e / 4.
void dropout(const float* x, float* y, int64_t count, uint64_t first, float scale, DropoutStream s);
void dropout(const double* x, double* y, int64_t count, uint64_t first, double scale,
             DropoutStream s);

double sum_of_squares(const float* x, int64_t count);
double sum_of_squares(const double* x, int64_t count);

/// Extents of a tensor of rows, or of my shard of them.
struct RowExtents {
  int64_t rows, hidden;  ///< R, my part of H
};

/// sums (H), zeroed: over the rows of x, first row first.
void sum_rows(RowExtents n, const float* x, double* sums);
void sum_rows(RowExtents n, const double* x, double* sums);

/// gelu with the tanh approximation, and dx = dy gelu'(x). `y` may be `x`, `dx` may be `dy`.
void gelu(const float* x, float* y, int64_t count);
void gelu_backward(const float* dy, const float* x, float* dx, int64_t count);
/// The same of gelu by the error function.
void gelu_exact(const float* x, float* y, int64_t count);
void gelu_exact_backward(const float* dy, const float* x, float* dx, int64_t count);

/// y[i] = silu(x[2i]) x[2i+1] and its gradient, for `pairs` values of i.
void swiglu(const float* x, float* y, int64_t pairs);
void swiglu_backward(const float* dy, const float* x, float* dx, int64_t pairs);

/// Extents of (B, N, S, D), the dims of heads.
struct HeadExtents {
  int64_t batch, heads, sequence, dim;
};
/// Rows of D elements, or one number each, by (b, n, s).
template <class T>
struct HeadRows {
  T* data;
  int64_t batch_stride, head_stride, sequence_stride;
  T* at(int64_t b, int64_t n, int64_t s) const {
    return data + b * batch_stride + n * head_stride + s * sequence_stride;
  }
};

/// (out, lse) = (out, lse) joined with (part, part_lse); where part_lse is -infinity, as it was.
template <class T>
struct AttentionMerge {
  HeadRows<T> out, lse;
  HeadRows<const T> part, part_lse;
};
void attention_merge(const HeadExtents& n, const AttentionMerge<float>& m);
void attention_merge(const HeadExtents& n, const AttentionMerge<double>& m);

/// cosines, sines (count, half) of positions[s] base^(-d/half), each a function of the position and
/// d alone, to 4 units in the last place of 1.
void rope_table(const int64_t* positions, int64_t count, int64_t half, double base, double* cosines,
                double* sines);
/// Turns the pairs (d, d + D/2) of x by the angles of a table (S, D/2); backwards if sign is -1.
template <class T>
struct Rope {
  HeadRows<const T> x;
  HeadRows<T> y;
  const T *cosines, *sines;
  T sign;
};
void rope(const HeadExtents& n, const Rope<float>& r);
void rope(const HeadExtents& n, const Rope<double>& r);

/// moments (R, 2): sums over my part of H of x and of x^2.
template <class T>
void norm_moments(RowExtents n, const T* x, double* moments);

/// y = (x - mean) rstd w + b with rstd = (variance + epsilon)^(-1/2). x holds the whole H.
template <class T>
struct NormForward {
  const T *x, *w, *b;
  double epsilon;
  T *y, *mean, *rstd;  ///< (R, H), (R), (R)
};
void layer_norm(RowExtents n, const NormForward<float>& a);
void layer_norm(RowExtents n, const NormForward<double>& a);

/// y = (x - mean) rstd w + b.
void norm_apply(RowExtents n, const float* x, const float* mean, const float* rstd, const float* w,
                const float* b, float* y);
void norm_apply(RowExtents n, const double* x, const double* mean, const double* rstd,
                const double* w, const double* b, double* y);

/// dx = rstd (dy w - (moment 0 + xhat moment 1) / hidden) + residual, dw = sum(dy xhat),
/// db = sum(dy).
template <class T>
struct NormBackward {
  const T *dy, *x, *mean, *rstd, *w;
  const double* moments;  ///< (R, 2) over the whole H; null: x holds it all
  int64_t hidden;         ///< the whole H
  const T* residual;      ///< (R, H), the gradient that passes the norm by; null: none
  T* dx;                  ///< (R, H)
  double *dw, *db;        ///< (H), zeroed
};
/// moments (R, 2): sums over my part of H of dy w and of dy w xhat. Reads dy, x, mean, rstd, w.
void norm_backward_moments(RowExtents n, const NormBackward<float>& a, double* moments);
void norm_backward_moments(RowExtents n, const NormBackward<double>& a, double* moments);
void norm_backward(RowExtents n, const NormBackward<float>& a);
void norm_backward(RowExtents n, const NormBackward<double>& a);

/// moments (R): sums over my part of H of x^2.
void rms_moments(RowExtents n, const float* x, double* moments);
void rms_moments(RowExtents n, const double* x, double* moments);

/// y = x rstd w with rstd = (moment / hidden + epsilon)^(-1/2).
template <class T>
struct RmsForward {
  const T *x, *w;
  const double* moments;  ///< (R) over the whole H; null: x holds it all
  int64_t hidden;         ///< the whole H
  double epsilon;
  T *y, *rstd;  ///< (R, H), (R)
};
void rms_norm(RowExtents n, const RmsForward<float>& a);
void rms_norm(RowExtents n, const RmsForward<double>& a);

/// dx = rstd (dy w - xhat moment / hidden) + residual, dw = sum(dy xhat).
template <class T>
struct RmsBackward {
  const T *dy, *x, *rstd, *w;
  const double* moments;  ///< (R) over the whole H; null: x holds it all
  int64_t hidden;         ///< the whole H
  const T* residual;      ///< (R, H), the gradient that passes the norm by; null: none
  T* dx;                  ///< (R, H)
  double* dw;             ///< (H), zeroed
};
/// moments (R): sums over my part of H of dy w xhat. Reads dy, x, rstd, w.
void rms_backward_moments(RowExtents n, const RmsBackward<float>& a, double* moments);
void rms_backward_moments(RowExtents n, const RmsBackward<double>& a, double* moments);
void rms_backward(RowExtents n, const RmsBackward<float>& a);
void rms_backward(RowExtents n, const RmsBackward<double>& a);

/// y (ids, H): table row ids[i] - first where that is one of `rows`, else zeros.
template <class T>
void embedding(const int64_t* ids, int64_t num_ids, int64_t first, RowExtents table, const T* w,
               T* y);
/// dw (rows, H), zeroed: sums dy rows by id, in the order of ids.
template <class T>
void embedding_backward(const int64_t* ids, int64_t num_ids, int64_t first, RowExtents table,
                        const T* dy, T* dw);

}  // namespace kuafu::kernels
