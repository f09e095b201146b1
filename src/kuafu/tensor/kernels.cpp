// SPDX-License-Identifier: Apache-2.0
#include "kuafu/tensor/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "kuafu/tensor/kernel_loops.h"

namespace kuafu::kernels {
namespace {

/// Philox4x32-10 of kLanes consecutive counters: word w of counter j in words[w][j].
using Words = std::array<std::array<uint32_t, kLanes>, 4>;

/// 64-bit lanes whose upper halves are zero: what the wide multiply reads and writes.
typedef uint64_t Wide __attribute__((vector_size(8 * kLanes)));

inline __attribute__((always_inline)) void philox_lanes(uint64_t first, uint64_t seed,
                                                        uint64_t site, Words& words) {
  constexpr uint64_t kLow = 0xffffffff;
  Wide c0, c1, c2, c3;
  for (int j = 0; j < kLanes; ++j) {
    const uint64_t counter = first + static_cast<uint64_t>(j);
    c0[j] = counter & kLow;
    c1[j] = counter >> 32;
    c2[j] = site & kLow;
    c3[j] = site >> 32;
  }
  uint64_t k0 = seed & kLow, k1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const Wide p0 = (c0 & kLow) * uint64_t{0xD2511F53}, p1 = (c2 & kLow) * uint64_t{0xCD9E8D57};
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1 & kLow;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0 & kLow;
    k0 = (k0 + 0x9E3779B9) & kLow;
    k1 = (k1 + 0xBB67AE85) & kLow;
  }
  for (int j = 0; j < kLanes; ++j) {
    words[0][j] = static_cast<uint32_t>(c0[j]);
    words[1][j] = static_cast<uint32_t>(c1[j]);
    words[2][j] = static_cast<uint32_t>(c2[j]);
    words[3][j] = static_cast<uint32_t>(c3[j]);
  }
}

/// 53 bits as a double in [0, 1), as CounterRandom makes it.
inline double unit(uint32_t a, uint32_t b) {
  const auto bits = static_cast<int64_t>(((static_cast<uint64_t>(a) << 32) | b) >> 11);
  return static_cast<double>(bits) * 0x1.0p-53;
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

template <class T>
inline __attribute__((always_inline)) void merge_row(const T* part, T* out, int64_t dim, T part_lse,
                                                     T* lse) {
  if (part_lse == -std::numeric_limits<T>::infinity()) return;  // it saw no keys
  const T largest = std::max(*lse, part_lse);
  const T old_weight = std::exp(*lse - largest), new_weight = std::exp(part_lse - largest);
  const T sum = old_weight + new_weight, a = old_weight / sum, b = new_weight / sum;
  *lse = largest + std::log(sum);
  for (int64_t d = 0; d < dim; ++d) out[d] = a * out[d] + b * part[d];
}

template <class T>
inline __attribute__((always_inline)) void merge_rows(const HeadExtents& n,
                                                      const AttentionMerge<T>& m) {
  for (int64_t b = 0; b < n.batch; ++b) {
    for (int64_t s = 0; s < n.sequence; ++s) {
      for (int64_t h = 0; h < n.heads; ++h) {
        merge_row(m.part.at(b, h, s), m.out.at(b, h, s), n.dim, *m.part_lse.at(b, h, s),
                  m.lse.at(b, h, s));
      }
    }
  }
}

}  // namespace

KUAFU_WIDE void attention_merge(const HeadExtents& n, const AttentionMerge<float>& m) {
  merge_rows(n, m);
}
KUAFU_WIDE void attention_merge(const HeadExtents& n, const AttentionMerge<double>& m) {
  merge_rows(n, m);
}

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

#define KUAFU_INSTANTIATE(T)                                                     \
  template void embedding(const int64_t*, int64_t, int64_t, Rows, const T*, T*); \
  template void embedding_backward(const int64_t*, int64_t, int64_t, Rows, const T*, T*)
KUAFU_INSTANTIATE(float);
KUAFU_INSTANTIATE(double);
#undef KUAFU_INSTANTIATE

}  // namespace kuafu::kernels
