// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

/// Intel's cores.
inline const bool kIsIntel = [] {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}();

/// Whether streams are asked for ahead of their use: on Intel's cores, where AdamW comes from 0.89 to 0.99
/// of the limit of memory by it, and on AMD's from family 26 on (Zen 5, one rank: AdamW 1.00 for 0.92).
/// The prefetchers of an EPYC of family 25 do better without: AdamW 1.02 for 0.86, SGD 1.01 for 0.79, LARS
/// 0.99 for 0.86, the norm 0.96 for 0.86, LAMB 0.86 either way.
inline const bool kAsksAhead = [] {
#if defined(__x86_64__)
  if (kIsIntel) return true;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__builtin_cpu_is("amd") == 0 || __get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  return (a >> 8 & 15) + (a >> 20 & 255) >= 26;  // family, and its extension
#else
  return false;
#endif
}();

/// How many elements before their use memory is asked for them: by updates; by the first passes of LAMB and
/// LARS; by a sum, which reads one stream alone. What takes less time an element must ask further ahead: on
/// an EPYC of family 26 the norm comes from 0.84 to 0.95 of the limit of memory by 2048 (512 does nothing,
/// 1024: 0.91), LARS from 0.89 to 0.96 by 1024 (2048: 0.93), LAMB from 0.94 to 0.98 (2048: 0.96), and AdamW
/// from 1.00 to 0.91. Not tried on Intel's cores, where 512 takes the norm from 0.6 to what reading takes.
constexpr int64_t kAhead = 512;
inline const int64_t kLayerAhead = kIsIntel ? 512 : 1024;
inline const int64_t kSumAhead = kIsIntel ? 512 : 2048;

/// Calls part(begin, end) over 0 .. count - 1, some 32 elements at a time, and before each of them
/// asks for what it will read of every stream kAhead elements later (kAsksAhead): an update waits for memory
/// where roots and quotients fill the processor's window. Beyond the end of a stream a request does nothing.
/// `kWrites`: asks to write, which is better with many streams and worse with few.
template <bool kWrites = true, class Part, class... Streams>
inline __attribute__((always_inline)) void each_ahead(int64_t count, const Part& part,
                                                      const Streams*... streams) {
  constexpr int64_t kPiece = 32;
  int64_t i = 0;
  for (; i + kPiece <= count; i += kPiece) {
    const auto ask = [i](const auto* x) __attribute__((always_inline)) {
      constexpr int64_t kLine = 64 / sizeof(*x);
      for (int64_t k = 0; k < kPiece; k += kLine) __builtin_prefetch(x + i + kAhead + k, kWrites);
    };
    if (kAsksAhead) (ask(streams), ...);
    part(i, i + kPiece);
  }
  part(i, count);
}

template <class T>
inline double square(T x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

/// Four elements of a vector.
template <class T>
struct Four {
  typedef T type __attribute__((vector_size(4 * sizeof(T))));  // NOLINT: no alias takes it
};

/// Squares in the partial sums of sum(). GCC 12 makes scalar code of those, which takes three times
/// as long.
struct SquareLanes {
  Four<double>::type partial[kLanes / 4] = {};

  /// kLanes elements.
  template <class T>
  inline __attribute__((always_inline)) void add(const T* x) {
    for (int k = 0; k < kLanes / 4; ++k) {
      typename Four<T>::type part;
      __builtin_memcpy(&part, x + 4 * k, sizeof part);
      const auto wide = __builtin_convertvector(part, Four<double>::type);
      partial[k] += wide * wide;
    }
  }
  /// `total`: of what is behind the last kLanes.
  inline __attribute__((always_inline)) double sum_with(double total) const {
    for (int j = 0; j < kLanes; ++j) total += partial[j / 4][j % 4];
    return total;
  }
};

/// sum() of the squares of x, in the same order.
template <class T>
inline __attribute__((always_inline)) double sum_of_squares_of(const T* x, int64_t count) {
  SquareLanes lanes;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) lanes.add(x + i);
  double rest = 0;
  for (; i < count; ++i) rest += square(x[i]);
  return lanes.sum_with(rest);
}

/// Squares of a block, added kStep elements at a time; those behind the last whole step by sum().
template <class T>
struct BlockSquares {
  static constexpr int64_t kStep = kLanes;
  SquareLanes lanes;

  inline __attribute__((always_inline)) void add(const T* x) { lanes.add(x); }
  /// Of x[0 .. count), of which [0, done) were added.
  inline __attribute__((always_inline)) double sum(const T* x, int64_t done, int64_t count) const {
    double rest = 0;
    for (int64_t i = done; i < count; ++i) rest += square(x[i]);
    return lanes.sum_with(rest);
  }
};

/// Of f32: four squares are added in f32 (three roundings at most, so within 1.8e-7 of their sum)
/// and widened then, which is half the work (LARS's first pass of a block in cache at 1.7 times the
/// rate). Where squares leave f32 the block is summed in f64 again: below kLeast what is lost may count.
template <>
struct BlockSquares<float> {
  static constexpr int64_t kStep = 32;
  static constexpr double kLeast = 1e-20;
  Four<double>::type even = {}, odd = {};

  inline __attribute__((always_inline)) void add(const float* x) {
    even += __builtin_convertvector(of_four(x), Four<double>::type);
    odd += __builtin_convertvector(of_four(x + 16), Four<double>::type);
  }
  inline __attribute__((always_inline)) double sum(const float* x, int64_t done,
                                                   int64_t count) const {
    double total = 0;
    for (int j = 0; j < 4; ++j) total += even[j] + odd[j];
    if (done > 0 && !(total >= kLeast && total <= std::numeric_limits<float>::max()))
      return sum_of_squares_of(x, count);
    for (int64_t i = done; i < count; ++i) total += square(x[i]);
    return total;
  }

 private:
  static inline __attribute__((always_inline)) Four<float>::type of_four(const float* x) {
    const Four<float>::type a = load(x), b = load(x + 4), c = load(x + 8), d = load(x + 12);
    return (a * a + b * b) + (c * c + d * d);
  }
  static inline __attribute__((always_inline)) Four<float>::type load(const float* x) {
    Four<float>::type out;
    __builtin_memcpy(&out, x, sizeof out);
    return out;
  }
};

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

}  // namespace kuafu::kernels
