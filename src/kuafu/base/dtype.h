// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace kuafu {

/// Element types that travel between ranks.
enum class DType : uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32, kU8 };

/// Bytes of one element.
constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

/// "f64", "f32", "bf16", "f16", "i64", "i32", "u8".
std::string_view to_string(DType t);

/// Inverse of to_string; throws ConfigError listing the names.
DType dtype_from(std::string_view name);

}  // namespace kuafu
