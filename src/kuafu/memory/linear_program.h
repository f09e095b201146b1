// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "kuafu/memory/segments.h"

namespace kuafu::memory {

/// The program of segments.h as solvers take it: minimise cost x where rows x >= least, x in [0, 1].
/// Bytes are counted in units of the largest number that divides all chunks, so that the least sums
/// are whole and no larger than need be.
struct LinearProgram {
  int64_t unit = 1;                ///< bytes
  std::vector<double> cost = {};   ///< by column: a d for each segment, then a w for each stretch
  std::vector<double> least = {};  ///< by row: of moments that cannot keep all, then w - d >= 0
  // By column, as CLP has it: entries start[j] to start[j + 1] - 1 are of column j.
  std::vector<int> start = {}, row = {};
  std::vector<double> value = {};
};
LinearProgram program_of(const UseTrace& trace, const Segments& all);

/// A bound of the program's value, in units, of any prices of its rows: for x in [0, 1] and y >= 0
/// with rows x >= least, cost x >= cost x - y (rows x - least) >= y least + sum min(0, cost - y rows).
/// What rounding may have added to these sums is taken off.
double bound_by_prices(const LinearProgram& program, const double* prices);

}  // namespace kuafu::memory
