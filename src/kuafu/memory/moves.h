// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "kuafu/memory/uses.h"

namespace kuafu::memory {

/// What a move does to a chunk.
enum class MoveKind {
  kLoad,       ///< copies it from its home to the device
  kMake,       ///< gives it space on the device and no bytes: the moment's use overwrites it
  kWriteBack,  ///< copies it home; it stays on the device, clean
  kDrop,       ///< frees its space on the device
};
const char* name_of(MoveKind kind);

/// A move of a chunk, given out before a moment computes.
struct Move {
  int64_t moment = 0;  ///< of all steps that repeat together: 0 to k T - 1
  int64_t chunk = 0;
  Tier from = Tier::kHost, to = Tier::kDevice;
  MoveKind kind = MoveKind::kLoad;
  bool operator==(const Move&) const = default;
};

/// "3: load 1, host to device", "4: drop 0".
std::ostream& operator<<(std::ostream& out, const Move& move);

/// The move of a kind between the device and the chunk's home.
Move make_move(const UseTrace& trace, int64_t moment, int64_t chunk, MoveKind kind);

/// What lies on the device, and what of it is younger than its home.
struct OnDevice {
  std::vector<bool> resident = {}, dirty = {};  ///< by chunk
  bool operator==(const OnDevice&) const = default;
  auto operator<=>(const OnDevice&) const = default;

  bool has(int64_t chunk) const { return resident[static_cast<size_t>(chunk)]; }
  bool is_dirty(int64_t chunk) const { return dirty[static_cast<size_t>(chunk)]; }
};

/// Nothing on the device.
OnDevice empty_device(const UseTrace& trace);

/// Bytes of the chunks on the device.
int64_t device_bytes(const UseTrace& trace, const OnDevice& on_device);

/// The rules that moves are held to, in the order of a step.
///
///     before moment t:  moves of t, one after the other     moment t computes
///                       load, make  not there, fits         its chunks are there, all fits
///                       write back  there, dirty            written chunks are dirty then
///                       drop        clean, or never read    what changes at home is not there
///                                   again
///
/// Everything throws ConfigError that says moment, chunk and rule: moves may be a plug-in's.
class Rules {
 public:
  /// `trace` must live longer. `on_device` lies on the device before moment 0.
  Rules(const UseTrace& trace, int64_t budget, OnDevice on_device);

  /// Makes a move of the moment that is next.
  void move(const Move& move);
  /// Lets the next moment compute; returns the live bytes, chunks and what else is in use.
  int64_t compute();

  const OnDevice& on_device() const { return on_device_; }
  const UsesByChunk& uses() const { return uses_; }
  int64_t moment() const { return moment_; }  ///< of the step, that is next

 private:
  void bring(const Move& move, const std::string& what);

  const UseTrace& trace_;
  int64_t budget_, chunk_bytes_ = 0, moment_ = 0;
  OnDevice on_device_;
  UsesByChunk uses_;
};

/// Bytes that moves carry.
struct Traffic {
  int64_t loaded = 0, written_back = 0;
  int64_t bytes() const { return loaded + written_back; }
  bool operator==(const Traffic&) const = default;
};
Traffic traffic_of(const UseTrace& trace, const std::vector<Move>& moves);

/// What a list of moves comes to; see Rules.
struct ReplayedMoves {
  std::vector<int64_t> live = {};  ///< bytes while each moment computes
  OnDevice end = {};
  bool operator==(const ReplayedMoves&) const = default;
};

/// Holds the moves of `steps` steps, in order of their moments, to the rules.
ReplayedMoves replay(const UseTrace& trace, int64_t budget, const OnDevice& start,
                     const std::vector<Move>& moves, int64_t steps);

}  // namespace kuafu::memory
