// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/combine.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace kuafu::device {

namespace {

/// What elements of T are combined in.
template <class T>
struct Wide {
  using Type = T;
  static __device__ T widen(T x) { return x; }
  static __device__ T round(T x) { return x; }
};
template <>
struct Wide<__nv_bfloat16> {
  using Type = float;
  static __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
  static __device__ __nv_bfloat16 round(float x) { return __float2bfloat16_rn(x); }
};
template <>
struct Wide<__half> {
  using Type = float;
  static __device__ float widen(__half x) { return __half2float(x); }
  static __device__ __half round(float x) { return __float2half_rn(x); }
};

template <class W>
__device__ W sum(W a, W b) {
  return a + b;
}
template <>
__device__ int sum(int a, int b) {
  return static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b));
}
template <>
__device__ long long sum(long long a, long long b) {
  using U = unsigned long long;
  return static_cast<long long>(static_cast<U>(a) + static_cast<U>(b));
}

template <Combine kHow, class W>
__device__ W combined(W a, W b) {
  if constexpr (kHow == Combine::kSum) return sum(a, b);
  if constexpr (kHow == Combine::kMax) return a < b ? b : a;
  return b < a ? b : a;
}

/// The arrays, by value: a kernel takes 4 KiB of arguments.
struct Arrays {
  const void* from[kMostArrays];
  void* into[kMostArrays];
  int num_from, num_into;
};

/// kWidth elements: what a thread reads and writes at once.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Some {
  T x[kWidth];
};

template <class T, Combine kHow, int kWidth>
__global__ void combine_kernel(const Arrays arrays, int64_t count) {
  using W = Wide<T>;
  using Piece = Some<T, kWidth>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t pieces = count / kWidth;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < pieces;
       i += stride) {
    typename W::Type all[kWidth];
    Piece piece = static_cast<const Piece*>(arrays.from[0])[i];
    if (arrays.num_from > 1) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) all[k] = W::widen(piece.x[k]);
      for (int r = 1; r < arrays.num_from; ++r) {
        const Piece next = static_cast<const Piece*>(arrays.from[r])[i];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) all[k] = combined<kHow>(all[k], W::widen(next.x[k]));
      }
#pragma unroll
      for (int k = 0; k < kWidth; ++k) piece.x[k] = W::round(all[k]);
    }
    for (int r = 0; r < arrays.num_into; ++r) static_cast<Piece*>(arrays.into[r])[i] = piece;
  }
}

template <class T, Combine kHow, int kWidth>
int launch_by_width(const Arrays& arrays, int64_t count, cudaStream_t stream) {
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 132 * 16;  // the loop covers the rest
  const int64_t wanted = (count / kWidth + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  combine_kernel<T, kHow, kWidth><<<blocks, kThreads, 0, stream>>>(arrays, count);
  return static_cast<int>(cudaGetLastError());
}

/// 16 bytes at a time where all arrays and their length allow it.
template <class T, Combine kHow>
int launch_by_alignment(const Arrays& arrays, int64_t count, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  bool is_aligned = count % kWidth == 0;
  const auto ask = [&](const void* p) {
    is_aligned = is_aligned && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  };
  for (int r = 0; r < arrays.num_from; ++r) ask(arrays.from[r]);
  for (int r = 0; r < arrays.num_into; ++r) ask(arrays.into[r]);
  return is_aligned ? launch_by_width<T, kHow, kWidth>(arrays, count, stream)
                    : launch_by_width<T, kHow, 1>(arrays, count, stream);
}

template <class T>
int launch(const CombineCall& call, cudaStream_t stream) {
  Arrays arrays;
  arrays.num_from = static_cast<int>(call.num_from);
  arrays.num_into = static_cast<int>(call.num_into);
  for (size_t r = 0; r < call.num_from; ++r) arrays.from[r] = call.from[r];
  for (size_t r = 0; r < call.num_into; ++r) arrays.into[r] = call.into[r];
  if (call.how == Combine::kSum) {
    return launch_by_alignment<T, Combine::kSum>(arrays, call.count, stream);
  }
  if (call.how == Combine::kMax) {
    return launch_by_alignment<T, Combine::kMax>(arrays, call.count, stream);
  }
  return launch_by_alignment<T, Combine::kMin>(arrays, call.count, stream);
}

}  // namespace

int load_combine() {
  cudaFuncAttributes attributes;
  return static_cast<int>(
      cudaFuncGetAttributes(&attributes, combine_kernel<float, Combine::kSum, 1>));
}

int launch_combine(const CombineCall& call, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  switch (call.dtype) {
    case DType::kF64:
      return launch<double>(call, on);
    case DType::kF32:
      return launch<float>(call, on);
    case DType::kBF16:
      return launch<__nv_bfloat16>(call, on);
    case DType::kF16:
      return launch<__half>(call, on);
    case DType::kI64:
      return launch<long long>(call, on);
    case DType::kI32:
      return launch<int>(call, on);
    case DType::kU8:
      return launch<uint8_t>(call, on);
  }
  return static_cast<int>(cudaErrorInvalidValue);
}

}  // namespace kuafu::device
