// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/optimizer/streams.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdlib>

#include "kuafu/kernels/loops.h"

#define KUAFU_INLINE inline __attribute__((always_inline))

namespace kuafu::micro {
namespace {

constexpr int64_t kLine = 16;    // f32 of a cache line
constexpr int64_t kAhead = 512;  // f32 between a request and its use

volatile float kept_sum = 0;  // of passes that write nothing

/// The elements begin .. end - 1 of W written and R read streams. `distance` of a sum: it asks for what it reads
/// so many elements later; 0: for nothing.
template <int W, int R>
KUAFU_INLINE void part(const Pass& s, int64_t begin, int64_t end, int64_t distance = 0) {
  const float* __restrict r0 = s.read[0];
  const float* __restrict r1 = s.read[R > 1 ? 1 : 0];
  if constexpr (W == 0) {
    float sums[32] = {};
    int64_t i = begin;
    for (; i + 32 <= end; i += 32) {
      for (int64_t at = i + distance; distance > 0 && at < i + distance + 32; at += kLine) {
        for (int k = 0; k < R; ++k) __builtin_prefetch(s.read[k] + at);
      }
      for (int64_t j = 0; j < 32; ++j) sums[j] += R > 1 ? r0[i + j] + r1[i + j] : r0[i + j];
    }
    for (; i < end; ++i) sums[0] += R > 1 ? r0[i] + r1[i] : r0[i];
    for (const float sum : sums) kept_sum = kept_sum + sum;
  } else {
    float* __restrict x0 = s.written[0];
    float* __restrict x1 = s.written[1];
    float* __restrict x2 = s.written[2];
    for (int64_t i = begin; i < end; ++i) {
      const float sum = R > 1 ? r0[i] + r1[i] : r0[i];
      // Reads before writes: one behind a write to the same place of another page waits for it.
      const float y0 = 0.5F * x0[i] + sum, y1 = W > 1 ? 0.5F * x1[i] + sum : 0.0F;
      const float y2 = W > 2 ? 0.5F * x2[i] + sum : 0.0F;
      x0[i] = y0;
      if constexpr (W > 1) x1[i] = y1;
      if constexpr (W > 2) x2[i] = y2;
    }
  }
}

template <int W, int R>
KUAFU_INLINE void in_blocks(const Pass& s, int64_t block) {
  if constexpr (W == 0) block = s.count;  // a sum ends with each part
  for (int64_t i = 0; i < s.count; i += block) {
    const int64_t end = std::min(i + block, s.count);
    if constexpr (W == 0) part<W, R>(s, i, end);
    for (int k = 0; k < W; ++k) {
      part<1, R>({{s.written[k]}, {s.read[0], s.read[1]}, s.count}, i, end);
    }
  }
}

template <int W, int R, bool kOwnsReads = false>
KUAFU_INLINE void asking(const Pass& s, int64_t distance) {
  if constexpr (W == 0) return part<W, R>(s, 0, s.count, distance);  // it ends with each part
  constexpr int64_t kStride = 2 * kLine;
  int64_t i = 0;
  for (; i + distance + kStride <= s.count; i += kStride) {
    for (int64_t at = i + distance; at < i + distance + kStride; at += kLine) {
      for (int k = 0; k < W; ++k) __builtin_prefetch(s.written[k] + at, 1);
      for (int k = 0; k < R; ++k) __builtin_prefetch(s.read[k] + at, kOwnsReads);
    }
    part<W, R>(s, i, i + kStride);
  }
  part<W, R>(s, i, s.count);
}

/// A line of x, read, halved, added to and stored past the caches. @pre x stands at a line's begin
KUAFU_INLINE void past_line(float* x, const float* a, const float* b) {
  const __m128 half = _mm_set1_ps(0.5F);
  __m128 parts[4];
  for (int k = 0; k < 4; ++k) {
    parts[k] = _mm_add_ps(_mm_mul_ps(half, _mm_load_ps(x + 4 * k)), _mm_loadu_ps(a + 4 * k));
    if (b != nullptr) parts[k] = _mm_add_ps(parts[k], _mm_loadu_ps(b + 4 * k));
  }
  for (int k = 0; k < 4; ++k) _mm_stream_ps(x + 4 * k, parts[k]);
}

/// Plainly where the streams do not begin on lines, or for what is left behind the last whole one.
template <int W, int R>
KUAFU_INLINE void past_caches(const Pass& s) {
  bool is_on_lines = W > 0;
  for (int k = 0; k < W; ++k) {
    is_on_lines = is_on_lines && reinterpret_cast<uintptr_t>(s.written[k]) % 64 == 0;
  }
  int64_t i = 0;
  for (; is_on_lines && i + kLine <= s.count; i += kLine) {
    for (int k = 0; k < W; ++k) {
      past_line(s.written[k] + i, s.read[0] + i, R > 1 ? s.read[1] + i : nullptr);
    }
  }
  _mm_sfence();
  part<W, R>(s, i, s.count);
}

// A function that is compiled for several machines is no template.
#define KUAFU_PASS(W, R)                                                            \
  KUAFU_WIDE void together_##W##R(const Pass& s) { part<W, R>(s, 0, s.count); }     \
  KUAFU_WIDE void one_by_one_##W##R(const Pass& s) { in_blocks<W, R>(s, 1024); }    \
  KUAFU_WIDE void by_lines_##W##R(const Pass& s) { in_blocks<W, R>(s, 4 * kLine); } \
  KUAFU_WIDE void ahead_##W##R(const Pass& s) { asking<W, R>(s, kAhead); }          \
  KUAFU_WIDE void owning_##W##R(const Pass& s) { asking<W, R, true>(s, kAhead); }   \
  KUAFU_WIDE void far_ahead_##W##R(const Pass& s) { asking<W, R>(s, 4 * kAhead); }  \
  void past_##W##R(const Pass& s) { past_caches<W, R>(s); }
KUAFU_PASS(3, 1)
KUAFU_PASS(2, 1)
KUAFU_PASS(2, 2)
KUAFU_PASS(1, 2)
KUAFU_PASS(1, 1)
KUAFU_PASS(0, 2)
KUAFU_PASS(0, 1)
#undef KUAFU_PASS

#define KUAFU_LOOP(name)                                      \
  void name(PassKind kind, const Pass& s) {                   \
    switch (10 * kind.written + kind.read) {                  \
      case 31:                                                \
        return name##_31(s);                                  \
      case 21:                                                \
        return name##_21(s);                                  \
      case 22:                                                \
        return name##_22(s);                                  \
      case 12:                                                \
        return name##_12(s);                                  \
      case 11:                                                \
        return name##_11(s);                                  \
      case 2:                                                 \
        return name##_02(s);                                  \
      case 1:                                                 \
        return name##_01(s);                                  \
      default:                                                \
        std::abort(); /* a rule of rules.cpp that none has */ \
    }                                                         \
  }
KUAFU_LOOP(together)
KUAFU_LOOP(one_by_one)
KUAFU_LOOP(by_lines)
KUAFU_LOOP(ahead)
KUAFU_LOOP(owning)
KUAFU_LOOP(far_ahead)
KUAFU_LOOP(past)
#undef KUAFU_LOOP

}  // namespace

const StreamLoop kStreamLoops[kNumStreamLoops] = {
    {"together", &together}, {"one by one", &one_by_one}, {"by lines", &by_lines},
    {"ahead", &ahead},       {"owning", &owning},         {"far ahead", &far_ahead},
    {"past", &past}};

}  // namespace kuafu::micro
