// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/traffic.h"

#include <immintrin.h>

#include <algorithm>

namespace kuafu::micro {
namespace {

// Compiled with -O3, as the kernels are: at -O2 GCC 12 makes vectors of none of these loops.
#define KUAFU_WIDE __attribute__((target_clones("avx2", "default")))

constexpr int64_t kLine = 16;    // f32 of a cache line
constexpr int64_t kAhead = 512;  // f32 between a request and its use
constexpr int64_t kBlock = 1024;

KUAFU_WIDE void plain(const Share& s) {
  for (float* const values : s.buffers) {
    for (int64_t i = s.begin; i < s.end; ++i) values[i] += 1.0F;
  }
}

KUAFU_WIDE void ahead(const Share& s) {
  for (float* const values : s.buffers) {
    int64_t i = s.begin;
    for (; i + kAhead + kLine <= s.end; i += kLine) {
      __builtin_prefetch(values + i + kAhead, 1);
      for (int64_t k = i; k < i + kLine; ++k) values[k] += 1.0F;
    }
    for (; i < s.end; ++i) values[i] += 1.0F;
  }
}

template <int n>
[[gnu::always_inline]] inline void beside_n(const Share& s) {
  float* const a = s.buffers[0];
  float* const b = s.buffers[1];
  float* const c = n > 2 ? s.buffers[2] : nullptr;
  float* const d = n > 3 ? s.buffers[3] : nullptr;
#pragma GCC ivdep
  for (int64_t i = s.begin; i < s.end; ++i) {
    // All are read before any is written: they lie at one place of a page, and a read behind a write to
    // such a place waits for it.
    const float x = a[i] + 1.0F, y = b[i] + 1.0F;
    const float z = n > 2 ? c[i] + 1.0F : 0.0F, w = n > 3 ? d[i] + 1.0F : 0.0F;
    a[i] = x;
    b[i] = y;
    if constexpr (n > 2) c[i] = z;
    if constexpr (n > 3) d[i] = w;
  }
}

/// @pre two or four buffers
KUAFU_WIDE void beside(const Share& s) {
  if (s.buffers.size() == 2) return beside_n<2>(s);
  return beside_n<4>(s);
}

/// @pre buffers begin on lines, and so does the share
void past(const Share& s) {
  const __m128 one = _mm_set1_ps(1.0F);
  for (float* const values : s.buffers) {
    int64_t i = s.begin;
    for (; i + kLine <= s.end; i += kLine) {
      __m128 parts[4];
      for (int k = 0; k < 4; ++k) parts[k] = _mm_add_ps(_mm_load_ps(values + i + 4 * k), one);
      for (int k = 0; k < 4; ++k) _mm_stream_ps(values + i + 4 * k, parts[k]);
    }
    for (; i < s.end; ++i) values[i] += 1.0F;
  }
  _mm_sfence();
}

KUAFU_WIDE void sum(const Share& s) {
  alignas(64) float block[kBlock];
  for (int64_t i = s.begin; i < s.end; i += kBlock) {
    const int64_t n = std::min(kBlock, s.end - i);
    std::copy_n(s.buffers[0] + i, n, block);
    for (size_t b = 1; b < s.buffers.size(); ++b) {
      const float* const values = s.buffers[b] + i;
      for (int64_t k = 0; k < n; ++k) block[k] += values[k];
    }
    for (float* const values : s.buffers) std::copy_n(block, n, values + i);
  }
}

}  // namespace

const TrafficWay kTrafficWays[kNumTrafficWays] = {
    {"one", Threads::kOne, false, &plain},      {"cores", Threads::kCores, false, &plain},
    {"ranks", Threads::kRanks, false, &plain},  {"ahead", Threads::kCores, false, &ahead},
    {"past", Threads::kCores, false, &past},    {"beside", Threads::kTiles, false, &beside},
    {"queue", Threads::kQueue, false, &beside}, {"sum", Threads::kCores, true, &sum},
    {"one, sum", Threads::kOne, true, &sum}};

}  // namespace kuafu::micro
