// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/chunks.h"

#include <algorithm>
#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

constexpr int64_t kMostSizes = 1'000'000;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t largest_param(const std::vector<ParamGroup>& groups) {
  int64_t largest = 0;
  for (const ParamGroup& group : groups) {
    for (const int64_t elements : group.elements) {
      KUAFU_REQUIRE(elements > 0, "a parameter of group \"", group.name, "\" has ", elements,
                    " elements; it needs some");
      largest = std::max(largest, elements);
    }
  }
  KUAFU_REQUIRE(largest > 0, "there are no parameters to lay into chunks");
  return largest;
}

}  // namespace

ChunkLayout layout_chunks(const std::vector<ParamGroup>& groups, int64_t size) {
  const int64_t largest = largest_param(groups);
  KUAFU_REQUIRE(largest <= size, "chunks of ", size, " elements hold no parameter of ", largest,
                ", and none is split");
  ChunkLayout out{size};
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<int64_t>& params = groups[g].elements;
    for (size_t i = 0; i < params.size(); ++i) {
      if (i == 0 || out.chunks.back().elements + params[i] > size) {
        out.chunks.push_back({static_cast<int64_t>(g), static_cast<int64_t>(i)});
      }
      ++out.chunks.back().count;
      out.chunks.back().elements += params[i];
    }
  }
  for (const ChunkContent& chunk : out.chunks) out.waste += size - chunk.elements;
  return out;
}

std::vector<int64_t> chunk_sizes(const std::vector<ParamGroup>& groups, const ChunkSearch& search) {
  KUAFU_REQUIRE(search.replicas > 0, "chunks are shared by ", search.replicas,
                " replicas; the least is 1");
  const int64_t largest = largest_param(groups);
  const int64_t first = search.smallest > 0 ? search.smallest : largest;
  const int64_t last = search.largest > 0 ? search.largest : 2 * first;
  KUAFU_REQUIRE(first >= largest && last >= first, "chunks of ", first, " to ", last,
                " elements were asked for; the largest parameter has ", largest,
                ", and the largest chunk is no smaller than the smallest");
  const int64_t step = search.step > 0 ? search.step : std::max<int64_t>(1, (last - first) / 64);
  KUAFU_REQUIRE((last - first) / step < kMostSizes, "more than ", kMostSizes,
                " sizes of chunks would be tried; choose a larger step");
  std::vector<int64_t> out;
  for (int64_t size = first; size <= last; size += step) {
    const int64_t rounded = round_up(size, search.replicas);
    if (out.empty() || out.back() != rounded) out.push_back(rounded);
  }
  return out;
}

ChunkLayout find_chunks(const std::vector<ParamGroup>& groups, const ChunkSearch& search) {
  ChunkLayout best;
  for (const int64_t size : chunk_sizes(groups, search)) {
    ChunkLayout layout = layout_chunks(groups, size);
    if (best.size == 0 || layout.waste < best.waste) best = std::move(layout);
  }
  return best;
}

}  // namespace kuafu::memory
