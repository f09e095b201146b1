// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kuafu/comm/communicator.h"

namespace kuafu {

/// Element-wise result = sources[0] op sources[1] op ... from left to right, stored to every
/// target. bf16 and f16 are combined in f32 and rounded once (to nearest, ties to even). Integer
/// sums wrap. A target may be one of the sources; other overlaps are not allowed.
/// @pre at least one source; all arrays hold `count` elements and are aligned to their type.
void combine(DType dtype, ReduceOp op, std::span<const void* const> sources,
             std::span<void* const> targets, int64_t count);

/// into = into op from.
void accumulate(DType dtype, ReduceOp op, void* into, const void* from, int64_t count);

/// bf16 and f16 bits of the nearest value, ties to even; NaN stays NaN.
uint16_t to_bf16(float value);
uint16_t to_f16(float value);
float from_bf16(uint16_t bits);
float from_f16(uint16_t bits);

}  // namespace kuafu
