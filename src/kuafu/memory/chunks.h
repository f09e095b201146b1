// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kuafu::memory {

/// Parameters that may share chunks, in the order in which they are used; none is split.
struct ParamGroup {
  std::string name = {};
  std::vector<int64_t> elements = {};  ///< of each parameter
  bool operator==(const ParamGroup&) const = default;
};

/// Parameters [first, first + count) of a group, one behind the other.
struct ChunkContent {
  int64_t group = 0, first = 0, count = 0;
  int64_t elements = 0;  ///< of these; the rest of the chunk is waste
  bool operator==(const ChunkContent&) const = default;
};

/// All chunks of one size, in elements.
struct ChunkLayout {
  int64_t size = 0;
  int64_t waste = 0;
  std::vector<ChunkContent> chunks = {};
  bool operator==(const ChunkLayout&) const = default;
};

/// Which sizes are tried: multiples of `replicas` from `smallest` to `largest`, `step` apart, each
/// rounded up. 0: the largest parameter; twice the smallest; a 64th of what lies between.
struct ChunkSearch {
  int64_t replicas = 1;  ///< that share a chunk in equal parts
  int64_t smallest = 0, largest = 0, step = 0;
};

/// Fills chunks of a size in order: a parameter that does not fit behind the last one begins the next
/// chunk (next-fit), and so does each group. Throws ConfigError where a parameter is larger.
ChunkLayout layout_chunks(const std::vector<ParamGroup>& groups, int64_t size);

/// The sizes that are tried, ascending, each once.
std::vector<int64_t> chunk_sizes(const std::vector<ParamGroup>& groups, const ChunkSearch& search);

/// The layout with the least waste; of equals that of the smallest chunks, which move with the least
/// delay. Gemini searches so, but leaves out large parameters and counts them as chunks of their own.
ChunkLayout find_chunks(const std::vector<ParamGroup>& groups, const ChunkSearch& search);

}  // namespace kuafu::memory
