// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kuafu/comm/cost_model.h"

namespace kuafu::algorithms {

/// A rank's place in its group.
struct GroupRank {
  int n = 1;
  int rank = 0;
  int next() const { return (rank + 1) % n; }
  int prev() const { return (rank + n - 1) % n; }
  /// The rank `by` places further around the ring; `by` may be negative.
  int shifted(int by) const { return ((rank + by) % n + n) % n; }
};

/// Elements [offset, offset + count).
struct Range {
  int64_t offset = 0;
  int64_t count = 0;
  /// The i-th of n parts, cut as Buffer::part does.
  Range part(int64_t i, int64_t n) const {
    const int64_t base = count / n, more = count % n;
    return {offset + i * base + (i < more ? i : more), base + (i < more ? 1 : 0)};
  }
};

/// Which memory a range lies in: the call's `out` or `in`, or scratch of the program's own.
enum class Area : uint8_t { kOut, kIn, kScratch };
struct BufferSlice {
  Area area = Area::kOut;
  Range range;
};

struct Transfer {
  int peer;
  BufferSlice span;
};
/// into = from, or into = into op from. A copy onto itself does nothing.
struct Local {
  enum class Kind : uint8_t { kCopy, kReduce };
  Kind kind;
  BufferSlice into;
  BufferSlice from;
};

/// Messages that go at once, then, when all are through, local work in order.
struct Round {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  std::vector<Local> locals;

  /// Empty messages are left out, by both sides.
  void send(int to, BufferSlice what);
  void receive(int from, BufferSlice where);
  void copy(BufferSlice into, BufferSlice from) {
    locals.push_back({Local::Kind::kCopy, into, from});
  }
  void reduce(BufferSlice into, BufferSlice from) {
    locals.push_back({Local::Kind::kReduce, into, from});
  }
};

/// What one rank does in a collective, as data.
struct Program {
  std::vector<Round> rounds;
  int64_t scratch = 0;  ///< elements
};

/// What the program puts on the wire; empty messages (of a barrier) are not counted.
WireTraffic traffic(const Program& program, int64_t element_bytes);

/// A collective cut into independent programs ("lanes") that overlap a few at a time: while the
/// pieces of one lane are added, still in the cache, those of the next one travel.
struct Lanes {
  int64_t num_lanes = 1;
  std::function<Program(int64_t lane)> lane;
};

WireTraffic traffic(const Lanes& lanes, int64_t element_bytes);

inline BufferSlice out(Range range) { return {Area::kOut, range}; }
inline BufferSlice in(Range range) { return {Area::kIn, range}; }
inline BufferSlice scratch(Range range) { return {Area::kScratch, range}; }

}  // namespace kuafu::algorithms
