// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kuafu/memory/optimum.h"

namespace kuafu::memory {

/// The least bytes of a step as a record of a run has them: bound <= least <= bytes.
struct LeastBytes {
  bool is_known = false;   ///< the next three are; else `why_not` says why
  int64_t bytes = 0;       ///< of the best choice found
  double bound = 0;        ///< no choice costs less
  bool is_proven = false;  ///< `bytes` is the least; else `why_not` says why
  std::string why_not = {};
  bool operator==(const LeastBytes&) const = default;

  double gap() const { return bytes == 0 ? 0 : 1 - bound / static_cast<double>(bytes); }
};

/// Of a trace without moments, which a run of one step has, of one that does not fit the budget and
/// in a build without CBC nothing is known.
LeastBytes least_for_record(const UseTrace& trace, int64_t budget,
                            const SearchLimits& limits = {.seconds = 5});

}  // namespace kuafu::memory
