// SPDX-License-Identifier: Apache-2.0
//
// The calls of the CUDA runtime that Kuafu makes, on threads and host memory.

#include <cuda_runtime.h>

#include <cstdio>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/standin/machine.h"
#include "tests/standin/stream.h"

using kuafu::standin::current_device;
using kuafu::standin::Machine;
using kuafu::standin::Mark;
using kuafu::standin::queue_of;

/// What a cudaEvent_t points to: the last recorded point, null before the first.
struct CUevent_st {
  mutable std::mutex mutex;
  std::shared_ptr<Mark> mark;

  std::shared_ptr<Mark> last() const {
    const std::lock_guard lock(mutex);
    return mark;
  }
};

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t note(cudaError_t code) {
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}

#define STANDIN_ENTER()                                     \
  if (const int code = Machine::instance().enter(__func__)) \
  return note(static_cast<cudaError_t>(code))

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t code = last_error;
  last_error = cudaSuccess;
  return code;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an error that the stand-in has no words for";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  STANDIN_ENTER();
  *count = Machine::instance().num_devices();
  return *count > 0 ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  STANDIN_ENTER();
  if (device < 0 || device >= Machine::instance().num_devices())
    return note(cudaErrorInvalidDevice);
  current_device() = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  STANDIN_ENTER();
  if (device < 0 || device >= Machine::instance().num_devices())
    return note(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "a stand-in");
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* bus, int length, int device) {
  STANDIN_ENTER();
  if (device < 0 || device >= Machine::instance().num_devices())
    return note(cudaErrorInvalidDevice);
  std::snprintf(bus, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  STANDIN_ENTER();
  *total = Machine::kTotalBytes;
  *free = *total - static_cast<size_t>(Machine::instance().bytes_in_use());
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  STANDIN_ENTER();
  *stream = new CUstream_st{Machine::instance().new_queue()};
  return cudaSuccess;
}

// As CUDA does: it returns at once, what was queued is still done.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  STANDIN_ENTER();
  if (stream == nullptr) return note(cudaErrorInvalidValue);
  Machine::instance().retire(std::move(stream->queue));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  STANDIN_ENTER();
  queue_of(stream)->mark()->wait();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  STANDIN_ENTER();
  if (const auto mark = event->last()) queue_of(stream)->push([mark] { mark->wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  STANDIN_ENTER();
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  STANDIN_ENTER();
  if (event == nullptr) return note(cudaErrorInvalidValue);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  STANDIN_ENTER();
  const auto mark = queue_of(stream)->mark();
  const std::lock_guard lock(event->mutex);
  event->mark = mark;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  STANDIN_ENTER();
  const auto mark = event->last();
  return mark == nullptr || mark->is_reached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  STANDIN_ENTER();
  if (const auto mark = event->last()) mark->wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  STANDIN_ENTER();
  const auto first = start->last(), last = end->last();
  if (first == nullptr || last == nullptr) return note(cudaErrorInvalidValue);
  if (!first->is_reached() || !last->is_reached()) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(last->when() - first->when()).count();
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  STANDIN_ENTER();
  *memory = Machine::instance().take(bytes);
  if (*memory == nullptr) return note(cudaErrorMemoryAllocation);
  Machine::instance().poison(*memory);
  return cudaSuccess;
}

// CUDA waits for the device first. Here nothing waits, so that memory that is still in use shows.
cudaError_t cudaFree(void* memory) {
  STANDIN_ENTER();
  if (memory == nullptr) return cudaSuccess;
  if (!Machine::instance().is_ours(memory)) return note(cudaErrorInvalidValue);
  Machine::instance().give_back(memory);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  STANDIN_ENTER();
  void* const taken = Machine::instance().take(bytes);
  if (taken == nullptr) return note(cudaErrorMemoryAllocation);
  *memory = taken;
  queue_of(stream)->push([taken] { Machine::instance().poison(taken); });
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  STANDIN_ENTER();
  if (!Machine::instance().is_ours(memory)) return note(cudaErrorInvalidValue);
  queue_of(stream)->push([memory] { Machine::instance().give_back(memory); });
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  STANDIN_ENTER();
  *memory = std::malloc(bytes);
  return *memory == nullptr ? note(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  STANDIN_ENTER();
  std::free(memory);
  return cudaSuccess;
}

// Never waits: with host memory that is not pinned CUDA does.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  STANDIN_ENTER();
  queue_of(stream)->push([=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}

}  // extern "C"
