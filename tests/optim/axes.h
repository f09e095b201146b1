// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kuafu/mesh/mesh.h"

namespace kuafu {

inline int ranks_of(const std::vector<Axis>& axes) {
  int64_t n = 1;
  for (const Axis& axis : axes) n *= axis.size;
  return static_cast<int>(n);
}

}  // namespace kuafu
