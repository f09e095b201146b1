// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/comm/communicator.h"

namespace kuafu::conformance {

/// What calls are given: memory, or sizes alone as a simulated rank takes them.
enum class Substance : uint8_t { kData, kNone };

/// Elements of the calls below.
struct CallSizes {
  std::vector<int64_t> wholes = {0, 1, 3, 101};  ///< of broadcasts, reductions and messages
  std::vector<int64_t> parts = {0, 1, 3, 101};   ///< a rank, of gathers, scatters and all-to-alls
};

/// Sizes on both sides of every size at which choose.cpp takes another algorithm or one piece more,
/// for any number of ranks up to 8: odd ones, primes, and those that no number of ranks divides.
CallSizes sizes_around_thresholds();

/// All verbs with all sizes on the world, on pairs in reverse order, on all ranks but one, and on
/// the first k ranks for every k, in reverse order; groups of each kind are booked under a label.
void every_verb(Communicator& world, Ledger& ledger, Substance substance,
                const CallSizes& sizes = {});

}  // namespace kuafu::conformance
