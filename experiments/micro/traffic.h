// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

// The traffic of an in-place all-reduce without the all-reduce: every element of every rank's buffer
// is read once and written once, 2 x ranks x bytes, and nobody waits for anybody. No all-reduce of
// ranks that share memory moves less.
namespace kuafu::micro {

/// Elements [begin, end) of all buffers.
struct Share {
  std::span<float* const> buffers;
  int64_t begin, end;
};

/// Who moves what.
enum class Threads : uint8_t {
  kOne,    ///< one thread everything: the second level's cache where all fits into it
  kCores,  ///< a thread a core, at most one a rank, the same elements of all buffers
  kRanks,  ///< a thread a rank, all elements of its own buffer
  kTiles,  ///< a thread a core, at most one a rank, by turns kTile elements of all buffers
  kQueue,  ///< the same, and whoever is free takes the next kTile elements; all end together
};

/// One way of moving a share: adds 1 to every element, or writes the sum of all to all.
struct TrafficWay {
  std::string_view name;
  Threads threads;
  bool sums;
  void (*run)(const Share&);
};

/// Every way that is tried at every size, in caches and beyond; the limit is the fastest of them.
///   one        one thread, buffer by buffer, as the compiler vectorises it
///   cores      a thread a core
///   ranks      a thread a rank, its own buffer
///   ahead      a thread a core that asks for lines before it needs them
///   past       a thread a core that stores past the caches
///   beside     a thread a core that goes through all buffers at once, tile by tile
///   queue      the same, but a core that is held up leaves the next tile to the others
///   sum        a thread a core that reads a block of all buffers, then writes it to all
///   one, sum   one thread that does
/// One way alone is no limit: rates of arrays beyond the caches were beaten 4.2 times by small
/// all-reduces that stay in them, and threads on buffers of their own 2.3 times by an all-reduce
/// whose work one thread did, since four threads on two cores hand the cores to each other; one
/// buffer after the other was beaten 1.27 times where caches hold all of them, since a core has more
/// lines under way that come from several places; the two halves of buffers beyond the caches, a core
/// each, 1.21 times by cores that take tiles of one place by turns; and tiles dealt beforehand 1.14
/// times by cores that take the next one when they are free.
inline constexpr int64_t kTile = 64 * 1024;
inline constexpr int kNumTrafficWays = 9;
extern const TrafficWay kTrafficWays[kNumTrafficWays];

}  // namespace kuafu::micro
