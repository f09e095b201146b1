// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "kuafu/base/errors.h"
#include "kuafu/memory/tier.h"

namespace kuafu::memory {

// Letters of this folder: T moments of a step, t a moment, c a chunk, k steps that repeat together.

/// Bytes that move together: parameters, gradients or slots of one group.
struct Chunk {
  int64_t bytes = 0;
  std::string group = {};
  /// Where its space below the device is; that space is never given up.
  Tier home = Tier::kHost;
  bool operator==(const Chunk&) const = default;
};

/// What a use does. What is overwritten is dead before: it needs space on the device, no bytes.
/// What changes at home, by the host, is not on the device meanwhile: what lay there is old.
enum class Access { kRead, kUpdate, kOverwrite, kAtHome };
/// Whether the device does it, with the chunk there; the next two are of these uses.
constexpr bool needs_device(Access access) { return access != Access::kAtHome; }
constexpr bool reads(Access access) { return access == Access::kRead || access == Access::kUpdate; }
constexpr bool writes(Access access) {
  return access == Access::kUpdate || access == Access::kOverwrite;
}
const char* name_of(Access access);

/// A chunk that a moment needs while it computes: on the device, or kAtHome.
struct ChunkUse {
  int64_t chunk = 0;
  Access access = Access::kRead;
  bool operator==(const ChunkUse&) const = default;
};

/// A stretch of computing between two places where chunks may move.
struct Moment {
  int64_t in_use = 0;  ///< bytes on the device that are no chunk's: activations, scratch
  double seconds = 0;  ///< of computing
  std::vector<ChunkUse> uses = {};
  bool operator==(const Moment&) const = default;
};

/// The uses of one step, which repeats for ever: after moment T - 1 comes moment 0 of the next step.
struct UseTrace {
  std::vector<Chunk> chunks = {};
  std::vector<Moment> moments = {};
  bool operator==(const UseTrace&) const = default;

  int64_t num_chunks() const { return static_cast<int64_t>(chunks.size()); }
  int64_t num_moments() const { return static_cast<int64_t>(moments.size()); }
};

/// A line a moment: "3: 10 in use, 0.5 s, 0 read, 2 update".
std::ostream& operator<<(std::ostream& out, const UseTrace& trace);

/// Throws ConfigError that names the moment or the chunk: bytes not positive, a chunk there is not
/// or twice in a moment, negative bytes or seconds, no moment, sums beyond 2^63 - 1.
void check(const UseTrace& trace);

/// Bytes of the chunks that a moment uses on the device.
int64_t used_bytes(const UseTrace& trace, int64_t moment);

/// A moment whose own chunks and what else is in use pass the budget: no policy helps.
class DoesNotFit : public OutOfMemory {
 public:
  DoesNotFit(int64_t moment, int64_t used, int64_t in_use, int64_t budget_);
  const char* what() const noexcept override { return words_.c_str(); }

 private:
  std::string words_;
};

/// Throws DoesNotFit for the first such moment.
void check_fits(const UseTrace& trace, int64_t budget);

/// The same step k times, as one that repeats.
UseTrace repeated(const UseTrace& trace, int64_t k);

/// Of one chunk, the next use at or after a moment, over the end of the step if need be.
struct NextUse {
  int64_t distance = 0;  ///< moments until then, less than T; T where the chunk is never used
  bool wraps = false;    ///< it is in the next step, or never
  Access access = Access::kRead;
  bool operator==(const NextUse&) const = default;
};

/// The uses of a trace by chunk, in order: what is asked of them all the time is found at once.
class UsesByChunk {
 public:
  explicit UsesByChunk(const UseTrace& trace);

  struct At {
    int64_t moment = 0;
    Access access = Access::kRead;
  };
  const std::vector<At>& of(int64_t chunk) const { return uses_[static_cast<size_t>(chunk)]; }
  NextUse next(int64_t chunk, int64_t moment) const;
  /// Moments since a chunk's last use before `moment`, 1 to T, over the beginning of the step if
  /// need be; T + 1 where it is never used.
  int64_t age(int64_t chunk, int64_t moment) const;
  /// Whether what the chunk holds before `moment` is never read: its next use overwrites it.
  bool is_dead(int64_t chunk, int64_t moment) const;

 private:
  int64_t moments_;
  std::vector<std::vector<At>> uses_;
};

/// How a moment uses a chunk; null where it does not.
const ChunkUse* use_of(const Moment& moment, int64_t chunk);

}  // namespace kuafu::memory
