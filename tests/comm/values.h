// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "kuafu/comm/reduction.h"

namespace kuafu::conformance {

inline const std::vector<DType> kAllTypes = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16,
                                             DType::kI64, DType::kI32, DType::kU8};

/// An array of any element type that is read and written as double.
class Values {
 public:
  Values(DType dtype, int64_t count)
      : dtype_(dtype), count_(count), bytes_(static_cast<size_t>(count * size_of(dtype))) {}
  /// Element i is f(i).
  Values(DType dtype, int64_t count, const std::function<double(int64_t)>& f)
      : Values(dtype, count) {
    for (int64_t i = 0; i < count; ++i) set(i, f(i));
  }

  Buffer buffer() { return {.data = bytes_.data(), .count = count_, .dtype = dtype_}; }
  int64_t count() const { return count_; }

  void set(int64_t i, double v) {
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
    std::memcpy(&v, bytes_.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return v;
  }

  DType dtype_;
  int64_t count_;
  std::vector<std::byte> bytes_;
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
