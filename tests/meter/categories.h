// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kuafu/meter/book.h"

namespace kuafu {

inline int64_t of(const BytesByCategory& b, Category c) { return b[static_cast<size_t>(c)]; }

}  // namespace kuafu
