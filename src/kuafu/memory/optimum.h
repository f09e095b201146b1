// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/memory/segments.h"

namespace kuafu::memory {

/// The least bytes of a step as far as they are known: bound <= least <= bytes.
struct Optimum {
  int64_t bytes = 0;  ///< of the best choice found
  double bound = 0;  ///< no choice costs less: of the relaxation, or better where it is searched on
  double relaxed = 0;              ///< the relaxation's own
  bool is_proven = false;          ///< `bytes` is the least
  std::vector<bool> is_kept = {};  ///< by segment of segments_of()
  double seconds = 0;              ///< of search

  /// How much less the least may be, as a part of `bytes`; 0 where it is proven.
  double gap() const { return bytes == 0 ? 0 : 1 - bound / static_cast<double>(bytes); }
};

/// When a search ends with what it has.
struct SearchLimits {
  double seconds = 60;
};

/// The bytes below which no moves of a step come, over any number of steps: the relaxation by CLP.
/// The figure is made of CLP's prices by weak duality in segments.h's program, so that it is a bound
/// whatever CLP did. Throws Unavailable in a build without CBC.
double least_bytes_bound(const UseTrace& trace, int64_t budget);

/// The least bytes of a step that repeats, by CBC: see segments.h for the program. Its cost is
/// counted anew from the choice in whole bytes. That it is proven rests on CBC, which has been wrong
/// (cbc.cpp), and on the tests and the campaign that hold it to every state tried. Throws Unavailable in a build without CBC, and
/// OutOfMemory where a moment does not fit.
Optimum least_bytes(const UseTrace& trace, int64_t budget, const SearchLimits& limits = {});

/// The same, kept for who asks again: one search for a trace, a budget and a limit in a process, one
/// at a time.
Optimum found_least_bytes(const UseTrace& trace, int64_t budget, const SearchLimits& limits = {});

/// Whether this build has CBC.
bool has_optimum();

}  // namespace kuafu::memory
