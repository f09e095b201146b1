// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/linear_program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kuafu::memory {
namespace {

struct Entry {
  int row;
  double value;
};

}  // namespace

LinearProgram program_of(const UseTrace& trace, const Segments& all) {
  LinearProgram out;
  out.unit = 0;
  for (const Chunk& chunk : trace.chunks) out.unit = std::gcd(out.unit, chunk.bytes);
  out.unit = std::max<int64_t>(out.unit, 1);
  const auto units = [&](int64_t bytes) { return static_cast<double>(bytes / out.unit); };
  for (const Segment& segment : all.segments) out.cost.push_back(units(segment.load));
  for (const int64_t bytes : all.stretches) out.cost.push_back(units(bytes));

  std::vector<std::vector<Entry>> columns(out.cost.size());
  for (size_t t = 0; t < all.room.size(); ++t) {
    std::vector<size_t> inside;
    int64_t bytes = 0;
    for (size_t i = 0; i < all.segments.size(); ++i) {
      if (!is_inside(all.segments[i], static_cast<int64_t>(t))) continue;
      inside.push_back(i);
      bytes += trace.chunks[static_cast<size_t>(all.segments[i].chunk)].bytes;
    }
    if (bytes <= all.room[t]) continue;
    // What is kept is a whole number of units, so the room may be rounded down to one.
    const auto row = static_cast<int>(out.least.size());
    out.least.push_back(units(bytes) - units(all.room[t]));
    for (const size_t i : inside) {
      columns[i].push_back(
          {row, units(trace.chunks[static_cast<size_t>(all.segments[i].chunk)].bytes)});
    }
  }
  for (size_t i = 0; i < all.segments.size(); ++i) {
    if (all.segments[i].stretch < 0) continue;
    const auto row = static_cast<int>(out.least.size());
    out.least.push_back(0);
    columns[i].push_back({row, -1});
    columns[all.segments.size() + static_cast<size_t>(all.segments[i].stretch)].push_back({row, 1});
  }
  for (const std::vector<Entry>& column : columns) {
    out.start.push_back(static_cast<int>(out.row.size()));
    for (const Entry& entry : column) {
      out.row.push_back(entry.row);
      out.value.push_back(entry.value);
    }
  }
  out.start.push_back(static_cast<int>(out.row.size()));
  return out;
}

double bound_by_prices(const LinearProgram& program, const double* prices) {
  double bound = 0, size = 0;  // size: the sum of what was added, without signs
  const auto price = [&](int row) { return std::max(0.0, prices[row]); };
  for (size_t r = 0; r < program.least.size(); ++r) {
    bound += price(static_cast<int>(r)) * program.least[r];
    size += price(static_cast<int>(r)) * program.least[r];
  }
  for (size_t j = 0; j < program.cost.size(); ++j) {
    double reduced = program.cost[j];
    size += program.cost[j];
    for (int e = program.start[j]; e < program.start[j + 1]; ++e) {
      const auto at = static_cast<size_t>(e);
      reduced -= price(program.row[at]) * program.value[at];
      size += std::abs(price(program.row[at]) * program.value[at]);
    }
    bound += std::min(0.0, reduced);
  }
  // Each of n additions and products errs by eps / 2 of a partial sum, none of which passes `size`.
  const auto n =
      static_cast<double>(program.least.size() + program.cost.size() + 2 * program.value.size());
  return std::max(0.0, bound - n * std::numeric_limits<double>::epsilon() * size);
}

}  // namespace kuafu::memory
