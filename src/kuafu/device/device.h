// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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

/// Makes `device` the one this thread uses from now on. Throws Unavailable where there is none
/// such.
void use(int device);

/// A queue of work on the current device that does not wait for the default one. Everything below
/// throws Unavailable where there is no device, CudaError where a call fails.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// Blocks the host until the queue is empty.
  void synchronize() const;
  void* handle() const { return handle_; }  ///< cudaStream_t

 private:
  void* handle_ = nullptr;
};

/// A point in a stream.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream);
  /// Orders what `stream` gets from now on behind the recorded point.
  void hold(const Stream& stream) const;
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
void copy(void* to, const void* from, int64_t bytes, const Stream& stream);

/// into[i] += from[i] on the device, in the order of the stream; bf16 and f16 are added in f32
/// and rounded once.
/// @pre dtype is f64, f32, bf16 or f16; the arrays do not overlap.
void add(DType dtype, void* into, const void* from, int64_t count, const Stream& stream);

}  // namespace kuafu::device
