// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kuafu/comm/communicator.h"
#include "kuafu/comm/reduction.h"
#include "kuafu/device/device.h"

namespace kuafu::conformance {

inline const std::vector<DType> kAllTypes = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16,
                                             DType::kI64, DType::kI32, DType::kU8};

/// While it lives, Values of the calling thread hand out memory of its device, in the order of
/// `stream`.
class OnDevice {
 public:
  explicit OnDevice(const device::DeviceStream& stream) : before_(std::exchange(mine(), &stream)) {}
  ~OnDevice() { mine() = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  /// Null where they hand out memory of the host.
  static const device::DeviceStream* stream() { return mine(); }

 private:
  static const device::DeviceStream*& mine() {
    thread_local const device::DeviceStream* stream = nullptr;
    return stream;
  }
  const device::DeviceStream* before_;
};

/// The body of a rank whose values live on a device.
inline std::function<void(Communicator&)> on_a_stream(
    const std::function<void(Communicator&)>& body) {
  return [body](Communicator& world) {
    const device::DeviceStream stream;
    const OnDevice scope(stream);
    body(world);
    stream.synchronize();
  };
}

/// An array of any element type that is read and written as double, on the host. On a device it is
/// copied there before it is handed out and back before it is read.
class Values {
 public:
  Values(DType dtype, int64_t count)
      : dtype_(dtype), count_(count), bytes_(static_cast<size_t>(count * size_of(dtype))) {}
  /// Element i is f(i).
  Values(DType dtype, int64_t count, const std::function<double(int64_t)>& f)
      : Values(dtype, count) {
    for (int64_t i = 0; i < count; ++i) set(i, f(i));
  }

  Values(const Values& other)
      : dtype_(other.dtype_), count_(other.count_), bytes_(other.bytes()), is_set_(true) {}
  Values(Values&&) = default;
  Values& operator=(const Values&) = delete;
  Values& operator=(Values&&) = delete;
  ~Values() = default;

  /// What calls are given; on a device, nothing but poison where no element was set.
  Buffer buffer() {
    const device::DeviceStream* const stream = OnDevice::stream();
    if (stream == nullptr) return {.data = bytes_.data(), .count = count_, .dtype = dtype_};
    if (memory_ == nullptr) {
      memory_ = std::make_unique<device::StreamMemory>(num_bytes(), *stream, 0);
      stream_ = stream;
    }
    if (is_set_) device::copy(memory_->data(), bytes_.data(), num_bytes(), *stream);
    // The copy is over before the host's bytes change or go.
    if (is_set_ && count_ > 0) stream->synchronize();
    is_set_ = false;
    is_handed_out_ = true;
    return {.data = memory_->data(),
            .count = count_,
            .dtype = dtype_,
            .place = Place::kDevice,
            .stream = stream->handle()};
  }
  int64_t count() const { return count_; }

  /// Takes over the elements of a buffer, on the device in the order of its stream.
  void take(const Buffer& from) {
    const Buffer mine = buffer();
    if (from.place == Place::kDevice) {
      device::copy(mine.data, from.data, from.bytes(), *stream_);
    } else if (count_ > 0) {
      std::memcpy(mine.data, from.data, static_cast<size_t>(from.bytes()));
    }
  }

  void set(int64_t i, double v) {
    bytes();
    is_set_ = true;
    switch (dtype_) {
      case DType::kF64:
        return put(i, v);
      case DType::kF32:
        return put(i, static_cast<float>(v));
      case DType::kBF16:
        return put(i, to_bf16(static_cast<float>(v)));
      case DType::kF16:
        return put(i, to_f16(static_cast<float>(v)));
      case DType::kI64:
        return put(i, static_cast<int64_t>(v));
      case DType::kI32:
        return put(i, static_cast<int32_t>(v));
      case DType::kU8:
        return put(i, static_cast<uint8_t>(v));
    }
  }

  double get(int64_t i) const {
    switch (dtype_) {
      case DType::kF64:
        return at<double>(i);
      case DType::kF32:
        return static_cast<double>(at<float>(i));
      case DType::kBF16:
        return static_cast<double>(from_bf16(at<uint16_t>(i)));
      case DType::kF16:
        return static_cast<double>(from_f16(at<uint16_t>(i)));
      case DType::kI64:
        return static_cast<double>(at<int64_t>(i));
      case DType::kI32:
        return at<int32_t>(i);
      case DType::kU8:
        return at<uint8_t>(i);
    }
    return 0;
  }

 private:
  template <class T>
  void put(int64_t i, T v) {
    std::memcpy(bytes_.data() + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
  }
  template <class T>
  T at(int64_t i) const {
    T v;
    std::memcpy(&v, bytes().data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return v;
  }

  int64_t num_bytes() const { return count_ * size_of(dtype_); }

  /// The host's bytes, as they are on the device.
  const std::vector<std::byte>& bytes() const {
    if (std::exchange(is_handed_out_, false) && count_ > 0) {
      device::copy(bytes_.data(), memory_->data(), num_bytes(), *stream_);
      stream_->synchronize();
    }
    return bytes_;
  }

  DType dtype_;
  int64_t count_;
  mutable std::vector<std::byte> bytes_;
  bool is_set_ = false;                 // since it was handed out on a device
  mutable bool is_handed_out_ = false;  // on a device, and not read since
  const device::DeviceStream* stream_ = nullptr;
  std::unique_ptr<device::StreamMemory> memory_;
};

/// What rank r holds at index i: integers small enough that eight ranks' sum is exact in bf16 and
/// u8.
inline double value(int64_t rank, int64_t index) {
  return static_cast<double>((rank * 7 + index * 3 + index / 16) % 13);
}

/// The reduction of value(r, index) over all ranks.
inline double reduced(ReduceOp op, int ranks, int64_t index) {
  double result = value(0, index);
  for (int r = 1; r < ranks; ++r) {
    const double v = value(r, index);
    if (op == ReduceOp::kSum) result += v;
    if (op == ReduceOp::kMax) result = std::max(result, v);
    if (op == ReduceOp::kMin) result = std::min(result, v);
  }
  return result;
}

/// Every element is expected(i); the first wrong one is reported.
inline void expect_values(const Values& values, const std::function<double(int64_t)>& expected,
                          const std::string& what) {
  for (int64_t i = 0; i < values.count(); ++i) {
    if (values.get(i) != expected(i)) {
      ADD_FAILURE() << what << ": element " << i << " of " << values.count() << " is "
                    << values.get(i) << ", expected " << expected(i);
      return;
    }
  }
}

}  // namespace kuafu::conformance
