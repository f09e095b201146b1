// SPDX-License-Identifier: Apache-2.0
#include "experiments/micro/optimizer/streams.h"

#include <algorithm>

#include "kuafu/tensor/kernel_loops.h"

namespace kuafu::micro {
namespace {

constexpr int64_t kLine = 16;    // f32 of a cache line
constexpr int64_t kAhead = 512;  // f32 between a request and its use
constexpr int64_t kBlock = 1024;

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

KUAFU_WIDE void one_by_one(const Streams& s) {
  for (int64_t i = 0; i < s.count; i += kBlock) {
    const int64_t n = std::min(kBlock, s.count - i);
    triad(s.w + i, s.grad + i, n);
    triad(s.m + i, s.grad + i, n);
    triad(s.v + i, s.grad + i, n);
  }
}

KUAFU_WIDE void ahead(const Streams& s) {
  int64_t i = 0;
  for (; i + kAhead + kLine <= s.count; i += kLine) {
    for (float* x : {s.w, s.m, s.v}) __builtin_prefetch(x + i + kAhead, 1);
    __builtin_prefetch(s.grad + i + kAhead);
    triads(s, i, i + kLine);
  }
  triads(s, i, s.count);
}

}  // namespace

const StreamLoop kStreamLoops[kNumStreamLoops] = {
    {"together", &together}, {"one by one", &one_by_one}, {"ahead", &ahead}};

}  // namespace kuafu::micro
