// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kuafu/base/dtype.h"
#include "kuafu/base/errors.h"

namespace kuafu::device {

/// A call of the CUDA runtime that failed.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// Devices this process can use; 0 where there is no driver, no device or no CUDA in the build.
/// Never throws.
int num_devices();

/// Why num_devices() is 0, for people; empty where it is not.
std::string why_none();

/// Why the first device cannot run this build's kernels, for people; empty where it can. @pre there is one
std::string why_unusable();

/// What the maker calls it: "NVIDIA H200". Throws Unavailable where there is none such.
std::string name_of(int device);

/// Where it is in its machine, the same for every process: "0000:18:00.0". Throws Unavailable
/// likewise.
std::string bus_of(int device);

/// Makes `device` the one this thread uses from now on. Throws Unavailable where there is none
/// such.
void use(int device);

/// A queue of work on the current device that does not wait for the default one. Everything below
/// throws Unavailable where there is no device, CudaError where a call fails.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  /// Blocks the host until the queue is empty.
  void synchronize() const;
  void* handle() const { return handle_; }  ///< cudaStream_t

 private:
  void* handle_ = nullptr;
};

/// A stream of ours, or one of somebody else's by its handle.
class StreamView {
 public:
  StreamView(const DeviceStream& stream) : handle_(stream.handle()) {}
  explicit StreamView(void* handle) : handle_(handle) {}
  void* handle() const { return handle_; }  ///< cudaStream_t

 private:
  void* handle_;
};

/// A point in a stream.
class Event {
 public:
  enum class Timing : uint8_t { kOn, kOff };  ///< off: faster, and without ms_since()
  explicit Event(Timing timing = Timing::kOn);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(StreamView stream);
  /// Orders what `stream` gets from now on behind the recorded point.
  void hold(StreamView stream) const;
  bool is_reached() const;
  void synchronize() const;
  /// Milliseconds from `start` to this point. @pre both are reached.
  double ms_since(const Event& start) const;

 private:
  void* handle_ = nullptr;
};

/// Memory of the current device. Throws OutOfMemory, which names `rank`.
class Memory {
 public:
  Memory(int64_t bytes, int rank);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Memory of the current device that is taken and given back in the order of a stream, without
/// waiting for the device. Throws OutOfMemory, which names `rank`. @pre the stream outlives it
class StreamMemory {
 public:
  StreamMemory(int64_t bytes, StreamView stream, int rank);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  StreamView stream_;
};

/// Host memory that the device copies from and to while the host goes on.
class PinnedMemory {
 public:
  PinnedMemory(int64_t bytes, int rank);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Copies between any two of host, pinned and device memory, in the order of the stream.
void copy(void* to, const void* from, int64_t bytes, StreamView stream);

/// What combine() makes of the elements of several arrays.
enum class Combine : uint8_t { kSum, kMax, kMin };

/// into[j][i] = from[0][i] how from[1][i] how ..., from left to right, for every j, in the order of
/// the stream: each source is read once and each target written once. bf16 and f16 are combined in
/// f32 and rounded once; integer sums wrap: the bits of kuafu::combine on the host, but for those of
/// a NaN. A target may be
/// a source; other overlaps are not allowed.
/// @pre 1 to kMostArrays sources and as many targets at most
inline constexpr size_t kMostArrays = 64;
void combine(DType dtype, Combine how, std::span<const void* const> from,
             std::span<void* const> into, int64_t count, StreamView stream);

}  // namespace kuafu::device
