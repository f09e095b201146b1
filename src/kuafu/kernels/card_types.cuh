// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kuafu/kernels/card.h"

// What the kernels of cards share.
namespace kuafu::kernels::card {

inline __device__ double wide(double x) { return x; }
inline __device__ float wide(float x) { return x; }
inline __device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
inline __device__ float wide(__half x) { return __half2float(x); }

template <class T>
inline __device__ T narrow(double x) {
  return static_cast<T>(x);
}
template <class T>
inline __device__ T narrow(float x) {
  return static_cast<T>(x);
}
template <>
inline __device__ __nv_bfloat16 narrow(float x) {
  return __float2bfloat16_rn(x);
}
template <>
inline __device__ __half narrow(float x) {
  return __float2half_rn(x);
}

/// f64 for f64, else f32.
template <class T>
struct Accumulator {
  using Type = float;
};
template <>
struct Accumulator<double> {
  using Type = double;
};

/// kWidth elements: what a thread reads and writes at once.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Some {
  T x[kWidth];
};

template <class T>
bool is_aligned(const T* p, int width) {
  return reinterpret_cast<uintptr_t>(p) % (sizeof(T) * static_cast<size_t>(width)) == 0;
}

/// Calls f with a null pointer to the type of `kind`.
template <class F>
int by_kind(Element kind, F f) {
  switch (kind) {
    case Element::kF64:
      return f(static_cast<double*>(nullptr));
    case Element::kF32:
      return f(static_cast<float*>(nullptr));
    case Element::kBF16:
      return f(static_cast<__nv_bfloat16*>(nullptr));
    case Element::kF16:
      return f(static_cast<__half*>(nullptr));
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

constexpr int kThreads = 256;

/// Blocks for so many pieces of work: a loop covers what is left over.
inline unsigned blocks_for(int64_t pieces) {
  constexpr int64_t kMost = 132 * 16;
  const int64_t wanted = (pieces + kThreads - 1) / kThreads;
  return static_cast<unsigned>(wanted < kMost ? (wanted > 0 ? wanted : 1) : kMost);
}

constexpr int kWarp = 32;

template <class T, class F>
__device__ T over_warp(T x, F f) {
#pragma unroll
  for (int k = kWarp / 2; k > 0; k /= 2) x = f(x, __shfl_xor_sync(0xffffffff, x, k));
  return x;
}

/// f over the values of all threads of a block, in an order that is always the same; on each of them.
template <class T, class F>
__device__ T over_block(T x, T neutral, F f) {
  __shared__ T of_warps[kThreads / kWarp];
  x = over_warp(x, f);
  __syncthreads();  // whoever still reads what was summed before
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  T all = neutral;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) all = f(all, of_warps[w]);
  return all;
}

template <class T>
__device__ T plus(T a, T b) {
  return a + b;
}
template <class T>
__device__ T larger(T a, T b) {
  return a < b ? b : a;
}

/// Elements of an update that a thread reads at once: 16 bytes of f32.
constexpr int kUpdateWidth = 4;

/// Calls f with zeros of the types of an update: its values and its gradients.
template <class F>
int by_types(Element kind, Element grad, F f) {
  if (kind == Element::kF64 && grad == Element::kF64) return f(double{}, double{});
  if (kind != Element::kF32) return static_cast<int>(cudaErrorInvalidValue);
  if (grad == Element::kF32) return f(float{}, float{});
  if (grad == Element::kBF16) return f(float{}, __nv_bfloat16{});
  if (grad == Element::kF16) return f(float{}, __half{});
  return static_cast<int>(cudaErrorInvalidValue);
}

inline int last_error() { return static_cast<int>(cudaGetLastError()); }

}  // namespace kuafu::kernels::card
