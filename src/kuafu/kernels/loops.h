// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

// What the loops of kernels.h share. Internal to them.

/// Compiles a function once plainly and once for wide vectors, chosen when the program starts.
/// Neither has fused multiply-adds, so that both give the same bits. Sanitizers are not ready yet
/// when that choice is made.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KUAFU_WIDE
#else
#define KUAFU_WIDE __attribute__((target_clones("avx2", "default")))
#endif

namespace kuafu::kernels {

constexpr int kLanes = 16;

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

/// Lanes of wide_sum and its like. With fewer GCC 12 unrolls the inner loop instead of making
/// vectors of it, and takes four times as long.
constexpr int kWide = 32;

/// The same with partial sums in T, those in f64: for rows, whose sums are short.
template <class T, class F>
inline __attribute__((always_inline)) double wide_sum(int64_t count, F f) {
  T partial[kWide] = {};
  int64_t i = 0;
  for (; i + kWide <= count; i += kWide) {
    for (int j = 0; j < kWide; ++j) partial[j] += f(i + j);
  }
  double total = 0;
  for (; i < count; ++i) total += f(i);
  for (const T p : partial) total += p;
  return total;
}

template <class T>
inline double square(T x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

}  // namespace kuafu::kernels
