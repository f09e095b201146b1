// SPDX-License-Identifier: Apache-2.0
#include "kuafu/base/dtype.h"

#include <array>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 7> kNames = {{{DType::kF64, "f64"},
                                                                       {DType::kF32, "f32"},
                                                                       {DType::kBF16, "bf16"},
                                                                       {DType::kF16, "f16"},
                                                                       {DType::kI64, "i64"},
                                                                       {DType::kI32, "i32"},
                                                                       {DType::kU8, "u8"}}};

}  // namespace

std::string_view to_string(DType t) { return kNames[static_cast<size_t>(t)].second; }

DType dtype_from(std::string_view name) {
  for (const auto& [type, spelling] : kNames) {
    if (spelling == name) return type;
  }
  throw ConfigError(
      text("unknown dtype \"", name, "\"; allowed: f64, f32, bf16, f16, i64, i32, u8"));
}

}  // namespace kuafu
