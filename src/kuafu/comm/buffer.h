// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kuafu/base/dtype.h"
#include "kuafu/base/errors.h"

namespace kuafu {

/// Where the bytes of a Buffer live. kMeta has a size and no substance.
enum class Place : uint8_t { kHost, kDevice, kMeta };

/// Contiguous typed memory, not owned. `data` is null in a simulated run.
struct Buffer {
  void* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::kF32;
  Place place = Place::kHost;
  void* stream = nullptr;  ///< cudaStream_t that produced the bytes; null on the host

  int64_t bytes() const { return count * size_of(dtype); }

  /// Elements [offset, offset + length).
  Buffer range(int64_t offset, int64_t length) const {
    KUAFU_CHECK(offset >= 0 && length >= 0 && offset + length <= count, "range [", offset, ", +",
                length, ") of ", count, " elements");
    Buffer piece = *this;
    if (data != nullptr) piece.data = static_cast<std::byte*>(data) + offset * size_of(dtype);
    piece.count = length;
    return piece;
  }

  /// The i-th of n parts; the first `count % n` parts hold one element more.
  Buffer part(int64_t i, int64_t n) const {
    const int64_t base = count / n, more = count % n;
    return range(i * base + (i < more ? i : more), base + (i < more ? 1 : 0));
  }
};

}  // namespace kuafu
