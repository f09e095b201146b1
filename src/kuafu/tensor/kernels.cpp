// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

// Compiled once plainly and once for wide vectors, chosen when the program starts. Neither has
// fused multiply-adds, so that both give the same bits.
#define KUAFU_WIDE __attribute__((target_clones("avx2", "default")))

namespace kuafu::kernels {
namespace {

constexpr int kLanes = 16;

/// Philox4x32-10 of kLanes consecutive counters: word w of counter j in words[w][j].
using Words = std::array<std::array<uint32_t, kLanes>, 4>;

inline __attribute__((always_inline)) void philox_lanes(uint64_t first, uint64_t seed,
                                                        uint64_t site, Words& c) {
  for (int j = 0; j < kLanes; ++j) {
    const uint64_t counter = first + static_cast<uint64_t>(j);
    c[0][j] = static_cast<uint32_t>(counter);
    c[1][j] = static_cast<uint32_t>(counter >> 32);
    c[2][j] = static_cast<uint32_t>(site);
    c[3][j] = static_cast<uint32_t>(site >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < kLanes; ++j) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c[0][j], p1 = uint64_t{0xCD9E8D57} * c[2][j];
      const uint32_t c1 = c[1][j], c3 = c[3][j];
      c[0][j] = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c[1][j] = static_cast<uint32_t>(p1);
      c[2][j] = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c[3][j] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

/// 53 bits as a double in [0, 1), as CounterRandom makes it.
inline double unit(uint32_t a, uint32_t b) {
  return static_cast<double>(((static_cast<uint64_t>(a) << 32) | b) >> 11) * 0x1.0p-53;
}

template <class T>
inline __attribute__((always_inline)) void dropout_row(const T* x, T* y, int64_t count,
                                                       uint64_t first, T scale, DropoutStream s) {
  constexpr int kWords = 4 * kLanes;
  Words words;
  std::array<uint32_t, kWords> bits;
  for (int64_t done = 0; done < count;) {
    const uint64_t element = first + static_cast<uint64_t>(done);
    philox_lanes(element / 4, s.seed, s.site, words);
    for (int j = 0; j < kLanes; ++j) {
      for (int w = 0; w < 4; ++w) bits[4 * j + w] = words[w][j];
    }
    const int skip = static_cast<int>(element % 4);
    const int64_t n = std::min<int64_t>(kWords - skip, count - done);
    for (int64_t i = 0; i < n; ++i) {
      y[done + i] = bits[skip + i] >= s.threshold ? x[done + i] * scale : T(0);
    }
    done += n;
  }
}

/// Sum over i of f(i), in kLanes interleaved partial sums.
template <class F>
inline __attribute__((always_inline)) double sum(int64_t count, F f) {
  std::array<double, kLanes> partial{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) partial[j] += f(i + j);
  }
  double total = 0;
  for (; i < count; ++i) total += f(i);
  for (const double p : partial) total += p;
  return total;
}

template <class T>
inline double square(T x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

}  // namespace

KUAFU_WIDE void normals(uint64_t seed, uint64_t site, uint64_t first, int64_t count, double* out) {
  Words c;
  std::array<double, kLanes> radius, angle;
  for (int64_t done = 0; done < count; done += kLanes) {
    philox_lanes(first + static_cast<uint64_t>(done), seed, site, c);
    for (int j = 0; j < kLanes; ++j) radius[j] = -2.0 * std::log(1.0 - unit(c[0][j], c[1][j]));
    for (int j = 0; j < kLanes; ++j) radius[j] = std::sqrt(radius[j]);
    for (int j = 0; j < kLanes; ++j) {
      angle[j] = std::cos(2.0 * std::numbers::pi * unit(c[2][j], c[3][j]));
    }
    const int n = static_cast<int>(std::min<int64_t>(kLanes, count - done));
    for (int j = 0; j < n; ++j) out[done + j] = radius[j] * angle[j];
  }
}

KUAFU_WIDE void dropout(const float* x, float* y, int64_t count, uint64_t first, float scale,
                        DropoutStream s) {
  dropout_row(x, y, count, first, scale, s);
}
KUAFU_WIDE void dropout(const double* x, double* y, int64_t count, uint64_t first, double scale,
                        DropoutStream s) {
  dropout_row(x, y, count, first, scale, s);
}

KUAFU_WIDE double sum_of_squares(const float* x, int64_t count) {
  return sum(count, [x](int64_t i) { return square(x[i]); });
}
KUAFU_WIDE double sum_of_squares(const double* x, int64_t count) {
  return sum(count, [x](int64_t i) { return square(x[i]); });
}

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

template <class T>
void norm_backward_moments(Rows n, const T* dy, const T* x, const T* mean, const T* rstd,
                           const T* w, double* moments) {
  for (int64_t r = 0; r < n.rows; ++r, x += n.hidden, dy += n.hidden) {
    const double m = mean[r], s = rstd[r];
    const auto g = [dy, w](int64_t i) { return static_cast<double>(dy[i]) * w[i]; };
    moments[2 * r] = sum(n.hidden, g);
    moments[2 * r + 1] = s * sum(n.hidden, [&](int64_t i) { return g(i) * (x[i] - m); });
  }
}

template <class T>
void norm_backward_apply(Rows n, const NormBackward<T>& a) {
  for (int64_t r = 0; r < n.rows; ++r) {
    const T *dy = a.dy + r * n.hidden, *x = a.x + r * n.hidden;
    T* dx = a.dx + r * n.hidden;
    const T m = a.mean[r], s = a.rstd[r];
    const T mean_g = static_cast<T>(a.moments[2 * r]),
            mean_gx = static_cast<T>(a.moments[2 * r + 1]);
    for (int64_t i = 0; i < n.hidden; ++i) {
      const T xhat = (x[i] - m) * s;
      dx[i] = s * (dy[i] * a.w[i] - mean_g - xhat * mean_gx);
      a.dw[i] += static_cast<double>(dy[i]) * xhat;
      a.db[i] += dy[i];
    }
  }
}

template <class T>
void embedding(const int64_t* ids, int64_t num_ids, int64_t first, Rows table, const T* w, T* y) {
  for (int64_t i = 0; i < num_ids; ++i, y += table.hidden) {
    const int64_t row = ids[i] - first;
    if (row < 0 || row >= table.rows) {
      std::fill_n(y, table.hidden, T(0));
    } else {
      std::copy_n(w + row * table.hidden, table.hidden, y);
    }
  }
}

template <class T>
void embedding_backward(const int64_t* ids, int64_t num_ids, int64_t first, Rows table, const T* dy,
                        T* dw) {
  for (int64_t i = 0; i < num_ids; ++i, dy += table.hidden) {
    const int64_t row = ids[i] - first;
    if (row < 0 || row >= table.rows) continue;
    T* into = dw + row * table.hidden;
    for (int64_t h = 0; h < table.hidden; ++h) into[h] += dy[h];
  }
}

#define KUAFU_INSTANTIATE(T)                                                                  \
  template void norm_moments(Rows, const T*, double*);                                        \
  template void norm_apply(Rows, const T*, const T*, const T*, const T*, const T*, T*);       \
  template void norm_backward_moments(Rows, const T*, const T*, const T*, const T*, const T*, \
                                      double*);                                               \
  template void norm_backward_apply(Rows, const NormBackward<T>&);                            \
  template void embedding(const int64_t*, int64_t, int64_t, Rows, const T*, T*);              \
  template void embedding_backward(const int64_t*, int64_t, int64_t, Rows, const T*, T*)
KUAFU_INSTANTIATE(float);
KUAFU_INSTANTIATE(double);
#undef KUAFU_INSTANTIATE

}  // namespace kuafu::kernels
