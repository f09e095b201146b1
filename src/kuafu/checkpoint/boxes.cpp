// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/boxes.h"

#include <algorithm>
#include <cstring>

namespace kuafu {
namespace {

/// Where element `at` (global) of a box lies in its memory.
int64_t index_in(const Slice& box, const Shape& at) {
  int64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) index = index * box.extent[d] + at[d] - box.offset[d];
  return index;
}

}  // namespace

int64_t volume(const Shape& extent) {
  int64_t n = 1;
  for (const int64_t e : extent) n *= e;
  return n;
}

bool is_empty(const Slice& box) {
  return std::any_of(box.extent.begin(), box.extent.end(), [](int64_t e) { return e <= 0; });
}

Slice overlap(const Slice& a, const Slice& b) {
  Slice both;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t first = std::max(a.offset[d], b.offset[d]);
    const int64_t last = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    both.offset.push_back(first);
    both.extent.push_back(last - first);
  }
  return both;
}

std::vector<Slice> boxes_of_run(const Shape& extent, int64_t begin, int64_t end) {
  std::vector<Slice> boxes;
  const size_t dims = extent.size();
  while (begin < end) {
    // The largest dim d such that a stretch of it, whole in all dims after d, starts at `begin`
    // and ends no later than `end`.
    Slice box{Shape(dims, 0), Shape(dims, 1)};
    int64_t row = 1;  // elements of one index of the dim after
    size_t d = dims;
    while (d > 0) {
      const int64_t wider = row * extent[d - 1];
      if (begin % wider != 0 || end - begin < wider) break;
      row = wider;
      --d;
    }
    for (size_t after = d; after < dims; ++after) box.extent[after] = extent[after];
    int64_t length = row;
    int64_t index = begin / row;
    if (d > 0) {  // several indices of dim d - 1, up to its end
      const int64_t at = index % extent[d - 1];
      const int64_t count = std::min(extent[d - 1] - at, (end - begin) / row);
      box.extent[d - 1] = count;
      length = count * row;
    }
    for (size_t before = d; before-- > 0;) {
      box.offset[before] = index % extent[before];
      index /= extent[before];
    }
    boxes.push_back(std::move(box));
    begin += length;
  }
  return boxes;
}

void copy_overlap(const Slice& from, const void* source, const Slice& to, void* target,
                  int64_t size) {
  const Slice both = overlap(from, to);
  if (is_empty(both)) return;
  const size_t dims = both.extent.size();
  const int64_t row = dims == 0 ? 1 : both.extent.back();
  Shape at = both.offset;
  const int64_t rows = volume(both.extent) / row;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<char*>(target) + index_in(to, at) * size,
                static_cast<const char*>(source) + index_in(from, at) * size,
                static_cast<size_t>(row * size));
    for (size_t d = dims; d-- > 1;) {  // the next row: the last dim is copied whole
      if (++at[d - 1] < both.offset[d - 1] + both.extent[d - 1]) break;
      at[d - 1] = both.offset[d - 1];
    }
  }
}

}  // namespace kuafu
