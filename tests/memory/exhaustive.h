// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kuafu/memory/uses.h"

namespace kuafu::memory {

/// Chunks up to which every state is tried.
inline constexpr int64_t kMostExhaustive = 8;

/// The least bytes of a step that ends as it began, by trying all: a second opinion on
/// least_bytes() that shares no code or idea with it. Between two moments each chunk is out, clean or
/// dirty; from each state of one moment, the cheapest way through all states of the others and back.
int64_t exhaustive_least_bytes(const UseTrace& trace, int64_t budget);

}  // namespace kuafu::memory
