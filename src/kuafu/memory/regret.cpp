// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/regret.h"

#include "kuafu/base/errors.h"

namespace kuafu::memory {

LeastBytes least_for_record(const UseTrace& trace, int64_t budget, const SearchLimits& limits) {
  LeastBytes out;
  if (trace.num_moments() == 0) {
    out.why_not = "no training step was made";
    return out;
  }
  if (!lacks_of_search().empty()) {
    out.why_not = "this build has no " + lacks_of_search();
    return out;
  }
  try {
    const Optimum least = found_least_bytes(trace, budget, limits);
    out.is_known = true;
    out.bytes = least.bytes;
    out.bound = least.bound;
    out.is_proven = least.is_proven;
    if (!out.is_proven) out.why_not = text("not proven in ", limits.seconds, " s of search");
  } catch (const DoesNotFit& e) {
    out.why_not = e.what();
  }
  return out;
}

}  // namespace kuafu::memory
