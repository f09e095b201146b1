// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/optimizer/streams.h"

#include <immintrin.h>

#include <algorithm>

#include "kuafu/kernels/loops.h"

namespace kuafu::micro {
namespace {

constexpr int64_t kLine = 16;    // f32 of a cache line
constexpr int64_t kAhead = 512;  // f32 between a request and its use

inline __attribute__((always_inline)) void triad(float* __restrict x, const float* __restrict grad,
                                                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = 0.5F * x[i] + grad[i];
}

inline __attribute__((always_inline)) void triads(const Streams& s, int64_t begin, int64_t end) {
  float* __restrict w = s.w;
  float* __restrict m = s.m;
  float* __restrict v = s.v;
  const float* __restrict grad = s.grad;
  for (int64_t i = begin; i < end; ++i) {
    m[i] = 0.5F * m[i] + grad[i];
    v[i] = 0.5F * v[i] + grad[i];
    w[i] = 0.5F * w[i] + grad[i];
  }
}

KUAFU_WIDE void together(const Streams& s) { triads(s, 0, s.count); }

inline __attribute__((always_inline)) void in_blocks(const Streams& s, int64_t block) {
  for (int64_t i = 0; i < s.count; i += block) {
    const int64_t n = std::min(block, s.count - i);
    triad(s.w + i, s.grad + i, n);
    triad(s.m + i, s.grad + i, n);
    triad(s.v + i, s.grad + i, n);
  }
}

KUAFU_WIDE void one_by_one(const Streams& s) { in_blocks(s, 1024); }
KUAFU_WIDE void by_lines(const Streams& s) { in_blocks(s, 4 * kLine); }

inline __attribute__((always_inline)) void ask(const Streams& s, int64_t i) {
  for (float* x : {s.w, s.m, s.v}) __builtin_prefetch(x + i, 1);
  __builtin_prefetch(s.grad + i);
}

inline __attribute__((always_inline)) void asking(const Streams& s, int64_t distance) {
  int64_t i = 0;
  for (; i + distance + kLine <= s.count; i += kLine) {
    ask(s, i + distance);
    triads(s, i, i + kLine);
  }
  triads(s, i, s.count);
}

KUAFU_WIDE void ahead(const Streams& s) { asking(s, kAhead); }
KUAFU_WIDE void far_ahead(const Streams& s) { asking(s, 4 * kAhead); }

/// A line of x, read, halved, added to and stored past the caches. @pre x stands at a line's begin
inline __attribute__((always_inline)) void past_line(float* x, const float* grad) {
  const __m128 half = _mm_set1_ps(0.5F);
  __m128 parts[4];
  for (int k = 0; k < 4; ++k) {
    parts[k] = _mm_add_ps(_mm_mul_ps(half, _mm_load_ps(x + 4 * k)), _mm_loadu_ps(grad + 4 * k));
  }
  for (int k = 0; k < 4; ++k) _mm_stream_ps(x + 4 * k, parts[k]);
}

/// Plainly where the streams do not begin on lines, or for what is left behind the last whole one.
void past(const Streams& s) {
  const auto is_on_line = [](const float* x) { return reinterpret_cast<uintptr_t>(x) % 64 == 0; };
  int64_t i = 0;
  if (is_on_line(s.w) && is_on_line(s.m) && is_on_line(s.v)) {
    for (; i + kLine <= s.count; i += kLine) {
      for (float* x : {s.w, s.m, s.v}) past_line(x + i, s.grad + i);
    }
    _mm_sfence();
  }
  triads(s, i, s.count);
}

}  // namespace

const StreamLoop kStreamLoops[kNumStreamLoops] = {
    {"together", &together}, {"one by one", &one_by_one}, {"by lines", &by_lines},
    {"ahead", &ahead},       {"far ahead", &far_ahead},   {"past", &past}};

}  // namespace kuafu::micro
