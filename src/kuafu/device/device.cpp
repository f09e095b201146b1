// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/device.h"

#include <cuda_runtime.h>

#include <array>

#include "kuafu/device/combine.h"

namespace kuafu::device {

namespace {

void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not report it again
  const std::string what = text(call, ": ", cudaGetErrorString(code));
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) throw Unavailable(what);
  throw CudaError(what);
}

#define KUAFU_CUDA(call) check_cuda(call, #call)

cudaStream_t stream_of(StreamView stream) { return static_cast<cudaStream_t>(stream.handle()); }

void check_device() {
  if (num_devices() == 0) throw Unavailable("no CUDA device: " + why_none());
}

void check_number(int device) {
  check_device();
  if (device >= 0 && device < num_devices()) return;
  throw Unavailable(
      text("device ", device, " was asked for; this machine has devices 0 to ", num_devices() - 1));
}

void check_allocation(cudaError_t code, const char* call, int64_t bytes, int rank) {
  if (code != cudaErrorMemoryAllocation) return check_cuda(code, call);
  cudaGetLastError();
  size_t free = 0, total = 0;
  KUAFU_CUDA(cudaMemGetInfo(&free, &total));
  throw OutOfMemory(rank, bytes, static_cast<int64_t>(total - free), static_cast<int64_t>(total));
}

}  // namespace

int num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::string why_none() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count > 0 ? "" : "the driver reports no device";
  cudaGetLastError();
  return cudaGetErrorString(code);
}

std::string why_unusable() {
  const auto code = static_cast<cudaError_t>(load_combine());
  if (code == cudaSuccess) return "";
  cudaGetLastError();
  return text("the card (", name_of(0),
              ") cannot run the kernels of this build: ", cudaGetErrorString(code),
              "; build with CMAKE_CUDA_ARCHITECTURES=native");
}

std::string name_of(int device) {
  check_number(device);
  cudaDeviceProp properties{};
  KUAFU_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties.name;
}

std::string bus_of(int device) {
  check_number(device);
  std::array<char, 32> bus{};
  KUAFU_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device));
  return bus.data();
}

void use(int device) {
  check_number(device);
  KUAFU_CUDA(cudaSetDevice(device));
}

DeviceStream::DeviceStream() {
  check_device();
  cudaStream_t stream = nullptr;
  KUAFU_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  handle_ = stream;
}

DeviceStream::~DeviceStream() { cudaStreamDestroy(static_cast<cudaStream_t>(handle_)); }

void DeviceStream::synchronize() const {
  KUAFU_CUDA(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)));
}

Event::Event(Timing timing) {
  check_device();
  cudaEvent_t event = nullptr;
  KUAFU_CUDA(cudaEventCreateWithFlags(
      &event, timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming));
  handle_ = event;
}

Event::~Event() { cudaEventDestroy(static_cast<cudaEvent_t>(handle_)); }

void Event::record(StreamView stream) {
  KUAFU_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(handle_), stream_of(stream)));
}

void Event::hold(StreamView stream) const {
  KUAFU_CUDA(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(handle_), 0));
}

bool Event::is_reached() const {
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (code == cudaErrorNotReady) return false;
  KUAFU_CUDA(code);
  return true;
}

void Event::synchronize() const {
  KUAFU_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)));
}

double Event::ms_since(const Event& start) const {
  float ms = 0;
  KUAFU_CUDA(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(start.handle_),
                                  static_cast<cudaEvent_t>(handle_)));
  return static_cast<double>(ms);
}

Memory::Memory(int64_t bytes, int rank) : bytes_(bytes) {
  KUAFU_REQUIRE(bytes >= 0, "device memory of ", bytes, " bytes; zero or more is right");
  check_device();
  if (bytes == 0) return;
  check_allocation(cudaMalloc(&data_, static_cast<size_t>(bytes)), "cudaMalloc", bytes, rank);
}

Memory::~Memory() { cudaFree(data_); }

StreamMemory::StreamMemory(int64_t bytes, StreamView stream, int rank) : stream_(stream) {
  KUAFU_REQUIRE(bytes >= 0, "device memory of ", bytes, " bytes; zero or more is right");
  check_device();
  if (bytes == 0) return;
  check_allocation(cudaMallocAsync(&data_, static_cast<size_t>(bytes), stream_of(stream)),
                   "cudaMallocAsync", bytes, rank);
}

StreamMemory::~StreamMemory() {
  if (data_ != nullptr) cudaFreeAsync(data_, stream_of(stream_));
}

PinnedMemory::PinnedMemory(int64_t bytes, int rank) : bytes_(bytes) {
  KUAFU_REQUIRE(bytes >= 0, "pinned memory of ", bytes, " bytes; zero or more is right");
  check_device();
  if (bytes == 0) return;
  check_allocation(cudaMallocHost(&data_, static_cast<size_t>(bytes)), "cudaMallocHost", bytes,
                   rank);
}

PinnedMemory::~PinnedMemory() { cudaFreeHost(data_); }

void copy(void* to, const void* from, int64_t bytes, StreamView stream) {
  if (bytes == 0) return;
  KUAFU_CUDA(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)));
}

void combine(DType dtype, Combine how, std::span<const void* const> from,
             std::span<void* const> into, int64_t count, StreamView stream) {
  KUAFU_REQUIRE(!from.empty() && from.size() <= kMostArrays && into.size() <= kMostArrays,
                "combining ", from.size(), " arrays into ", into.size(), "; 1 to ", kMostArrays,
                " are possible");
  if (count == 0 || into.empty()) return;
  check_cuda(static_cast<cudaError_t>(launch_combine(
                 {dtype, how, from.data(), into.data(), from.size(), into.size(), count},
                 stream.handle())),
             "launch_combine");
}

}  // namespace kuafu::device
