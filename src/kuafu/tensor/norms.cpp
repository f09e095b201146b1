// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kuafu/tensor/kernel_loops.h"
#include "kuafu/tensor/kernels.h"

namespace kuafu::kernels {

template <class T>
void norm_moments(Rows n, const T* x, double* moments) {
  for (int64_t r = 0; r < n.rows; ++r, x += n.hidden) {
    moments[2 * r] = sum(n.hidden, [x](int64_t i) { return static_cast<double>(x[i]); });
    moments[2 * r + 1] = sum(n.hidden, [x](int64_t i) { return square(x[i]); });
  }
}

template <class T>
void norm_apply(Rows n, const T* x, const T* mean, const T* rstd, const T* w, const T* b, T* y) {
  for (int64_t r = 0; r < n.rows; ++r, x += n.hidden, y += n.hidden) {
    const T m = mean[r], s = rstd[r];
    for (int64_t i = 0; i < n.hidden; ++i) y[i] = (x[i] - m) * s * w[i] + b[i];
  }
}

#define KUAFU_INSTANTIATE(T)                           \
  template void norm_moments(Rows, const T*, double*); \
  template void norm_apply(Rows, const T*, const T*, const T*, const T*, const T*, T*)
KUAFU_INSTANTIATE(float);
KUAFU_INSTANTIATE(double);
#undef KUAFU_INSTANTIATE

namespace {

/// The sums over one row of g and of g xhat, g = dy w.
struct Moments {
  double g, gx;
};

template <class T>
inline __attribute__((always_inline)) Moments moments_of_row(Rows n, const NormBackward<T>& a,
                                                             int64_t r) {
  const T *dy = a.dy + r * n.hidden, *x = a.x + r * n.hidden, *w = a.w;
  const double mean = a.mean[r], rstd = a.rstd[r];
  const auto g = [=](int64_t i) { return static_cast<double>(dy[i]) * w[i]; };
  return {sum(n.hidden, g), rstd * sum(n.hidden, [=](int64_t i) { return g(i) * (x[i] - mean); })};
}

/// dx += row r of the residual gradient while dx is in the cache: the sum has the bits of an add of
/// its own, without reading and writing all of dx once more.
template <class T>
inline __attribute__((always_inline)) void add_residual(Rows n, const T* residual, int64_t r,
                                                        T* __restrict__ dx) {
  if (residual == nullptr) return;
  const T* row = residual + r * n.hidden;
  for (int64_t i = 0; i < n.hidden; ++i) dx[i] += row[i];
}

template <class T>
inline __attribute__((always_inline)) void norm_backward_rows(Rows n, const NormBackward<T>& a) {
  const T* __restrict__ w = a.w;
  double* __restrict__ dw = a.dw;
  double* __restrict__ db = a.db;
  const auto hidden = static_cast<double>(a.hidden);
  for (int64_t r = 0; r < n.rows; ++r) {
    const T *dy = a.dy + r * n.hidden, *x = a.x + r * n.hidden;
    T* __restrict__ dx = a.dx + r * n.hidden;
    const T m = a.mean[r], s = a.rstd[r];
    const Moments sums = a.moments != nullptr ? Moments{a.moments[2 * r], a.moments[2 * r + 1]}
                                              : moments_of_row(n, a, r);
    const T mean_g = static_cast<T>(sums.g / hidden), mean_gx = static_cast<T>(sums.gx / hidden);
    for (int64_t i = 0; i < n.hidden; ++i) {
      const T xhat = (x[i] - m) * s;
      dx[i] = s * (dy[i] * w[i] - mean_g - xhat * mean_gx);
      dw[i] += static_cast<double>(dy[i]) * xhat;
      db[i] += dy[i];
    }
    add_residual(n, a.residual, r, dx);
  }
}

template <class T>
inline __attribute__((always_inline)) void norm_backward_sums(Rows n, const NormBackward<T>& a,
                                                              double* moments) {
  for (int64_t r = 0; r < n.rows; ++r) {
    const Moments sums = moments_of_row(n, a, r);
    moments[2 * r] = sums.g;
    moments[2 * r + 1] = sums.gx;
  }
}

template <class T>
inline __attribute__((always_inline)) double squares(const T* x, int64_t count) {
  return sum(count, [x](int64_t i) { return square(x[i]); });
}

template <class T>
inline __attribute__((always_inline)) double products(const T* dy, const T* x, const T* w,
                                                      int64_t count) {
  return sum(count, [=](int64_t i) {
    return static_cast<double>(dy[i]) * static_cast<double>(w[i]) * static_cast<double>(x[i]);
  });
}

template <class T>
inline __attribute__((always_inline)) void rms_rows(Rows n, const RmsForward<T>& a) {
  for (int64_t r = 0; r < n.rows; ++r) {
    const T* x = a.x + r * n.hidden;
    T* y = a.y + r * n.hidden;
    const double moment = a.moments != nullptr ? a.moments[r] : squares(x, n.hidden);
    const T s = static_cast<T>(1 / std::sqrt(moment / static_cast<double>(a.hidden) + a.epsilon));
    a.rstd[r] = s;
    for (int64_t i = 0; i < n.hidden; ++i) y[i] = x[i] * s * a.w[i];
  }
}

template <class T>
inline __attribute__((always_inline)) void rms_backward_rows(Rows n, const RmsBackward<T>& a) {
  const T* __restrict__ w = a.w;
  double* __restrict__ dw = a.dw;
  for (int64_t r = 0; r < n.rows; ++r) {
    const T *dy = a.dy + r * n.hidden, *x = a.x + r * n.hidden;
    T* __restrict__ dx = a.dx + r * n.hidden;
    const T s = a.rstd[r];
    const double moment = a.moments != nullptr ? a.moments[r] : s * products(dy, x, w, n.hidden);
    const T mean = static_cast<T>(moment / static_cast<double>(a.hidden));
    for (int64_t i = 0; i < n.hidden; ++i) {
      const T xhat = x[i] * s;
      dx[i] = s * (dy[i] * w[i] - xhat * mean);
      dw[i] += static_cast<double>(dy[i]) * xhat;
    }
    add_residual(n, a.residual, r, dx);
  }
}

template <class T>
inline __attribute__((always_inline)) void rms_backward_sums(Rows n, const RmsBackward<T>& a,
                                                             double* moments) {
  for (int64_t r = 0; r < n.rows; ++r) {
    const int64_t first = r * n.hidden;
    moments[r] = a.rstd[r] * products(a.dy + first, a.x + first, a.w, n.hidden);
  }
}

}  // namespace

KUAFU_WIDE void norm_backward_moments(Rows n, const NormBackward<float>& a, double* moments) {
  norm_backward_sums(n, a, moments);
}
KUAFU_WIDE void norm_backward_moments(Rows n, const NormBackward<double>& a, double* moments) {
  norm_backward_sums(n, a, moments);
}
KUAFU_WIDE void norm_backward(Rows n, const NormBackward<float>& a) { norm_backward_rows(n, a); }
KUAFU_WIDE void norm_backward(Rows n, const NormBackward<double>& a) { norm_backward_rows(n, a); }

KUAFU_WIDE void rms_moments(Rows n, const float* x, double* moments) {
  for (int64_t r = 0; r < n.rows; ++r) moments[r] = squares(x + r * n.hidden, n.hidden);
}
KUAFU_WIDE void rms_moments(Rows n, const double* x, double* moments) {
  for (int64_t r = 0; r < n.rows; ++r) moments[r] = squares(x + r * n.hidden, n.hidden);
}
KUAFU_WIDE void rms_norm(Rows n, const RmsForward<float>& a) { rms_rows(n, a); }
KUAFU_WIDE void rms_norm(Rows n, const RmsForward<double>& a) { rms_rows(n, a); }
KUAFU_WIDE void rms_backward_moments(Rows n, const RmsBackward<float>& a, double* moments) {
  rms_backward_sums(n, a, moments);
}
KUAFU_WIDE void rms_backward_moments(Rows n, const RmsBackward<double>& a, double* moments) {
  rms_backward_sums(n, a, moments);
}
KUAFU_WIDE void rms_backward(Rows n, const RmsBackward<float>& a) { rms_backward_rows(n, a); }
KUAFU_WIDE void rms_backward(Rows n, const RmsBackward<double>& a) { rms_backward_rows(n, a); }

}  // namespace kuafu::kernels
