// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/add.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace kuafu::device {

namespace {

__device__ double sum(double a, double b) { return a + b; }
__device__ float sum(float a, float b) { return a + b; }
__device__ __nv_bfloat16 sum(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

__device__ __half sum(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}

template <class T>
__global__ void add_kernel(T* into, const T* from, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    into[i] = sum(into[i], from[i]);
  }
}

template <class T>
int launch(void* into, const void* from, int64_t count, void* stream) {
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 4096;  // the loop covers the rest
  const int64_t wanted = (count + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  add_kernel<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<T*>(into), static_cast<const T*>(from), count);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

int launch_add(DType dtype, void* into, const void* from, int64_t count, void* stream) {
  if (dtype == DType::kF64) return launch<double>(into, from, count, stream);
  if (dtype == DType::kF32) return launch<float>(into, from, count, stream);
  if (dtype == DType::kF16) return launch<__half>(into, from, count, stream);
  return launch<__nv_bfloat16>(into, from, count, stream);
}

}  // namespace kuafu::device
