// SPDX-License-Identifier: Apache-2.0
#include "kuafu/memory/moves.h"

#include <utility>

#include "kuafu/base/errors.h"

namespace kuafu::memory {
namespace {

bool is_in(MoveKind kind) { return kind == MoveKind::kLoad || kind == MoveKind::kMake; }

}  // namespace

const char* name_of(MoveKind kind) {
  constexpr const char* kNames[] = {"load", "make", "write back", "drop"};
  return kNames[static_cast<int>(kind)];
}

std::ostream& operator<<(std::ostream& out, const Move& move) {
  out << move.moment << ": " << name_of(move.kind) << " " << move.chunk;
  const bool carries = move.kind == MoveKind::kLoad || move.kind == MoveKind::kWriteBack;
  if (carries) out << ", " << name_of(move.from) << " to " << name_of(move.to);
  return out;
}

Move make_move(const UseTrace& trace, int64_t moment, int64_t chunk, MoveKind kind) {
  const Tier home = trace.chunks[static_cast<size_t>(chunk)].home;
  if (is_in(kind)) return {moment, chunk, home, Tier::kDevice, kind};
  return {moment, chunk, Tier::kDevice, home, kind};
}

OnDevice empty_device(const UseTrace& trace) {
  return {std::vector<bool>(trace.chunks.size()), std::vector<bool>(trace.chunks.size())};
}

int64_t device_bytes(const UseTrace& trace, const OnDevice& on_device) {
  int64_t bytes = 0;
  for (size_t c = 0; c < trace.chunks.size(); ++c) {
    if (on_device.resident[c]) bytes += trace.chunks[c].bytes;
  }
  return bytes;
}

Rules::Rules(const UseTrace& trace, int64_t budget, OnDevice on_device)
    : trace_(trace), budget_(budget), on_device_(std::move(on_device)), uses_(trace) {
  KUAFU_REQUIRE(on_device_.resident.size() == trace.chunks.size() &&
                    on_device_.dirty.size() == trace.chunks.size(),
                "what is on the device is of ", on_device_.resident.size(),
                " chunks, the trace has ", trace.chunks.size());
  chunk_bytes_ = device_bytes(trace, on_device_);
}

void Rules::bring(const Move& move, const std::string& what) {
  const auto c = static_cast<size_t>(move.chunk);
  const int64_t in_use = trace_.moments[static_cast<size_t>(moment_)].in_use;
  KUAFU_REQUIRE(!on_device_.resident[c], what, ", which is on the device already");
  const ChunkUse* use = use_of(trace_.moments[static_cast<size_t>(moment_)], move.chunk);
  KUAFU_REQUIRE(
      move.kind == MoveKind::kLoad || (use != nullptr && use->access == Access::kOverwrite), what,
      ", which this moment does not overwrite: it would be used without its bytes");
  const int64_t live = in_use + chunk_bytes_;
  KUAFU_REQUIRE(live + trace_.chunks[c].bytes <= budget_, what, ", which makes ",
                live + trace_.chunks[c].bytes, " live bytes, budget ", budget_);
  on_device_.resident[c] = true;
  chunk_bytes_ += trace_.chunks[c].bytes;
}

void Rules::move(const Move& move) {
  const std::string what = text("move \"", move, "\"");
  KUAFU_REQUIRE(move.chunk >= 0 && move.chunk < trace_.num_chunks(), what, ": there are ",
                trace_.num_chunks(), " chunks");
  KUAFU_REQUIRE(move.moment % trace_.num_moments() == moment_, what, " is given out before moment ",
                moment_, " of the step");
  KUAFU_REQUIRE(move == make_move(trace_, move.moment, move.chunk, move.kind), what,
                ": chunks move between the device and their home");
  if (is_in(move.kind)) return bring(move, what);
  const auto c = static_cast<size_t>(move.chunk);
  KUAFU_REQUIRE(on_device_.resident[c], what, ", which is not on the device");
  if (move.kind == MoveKind::kWriteBack) {
    KUAFU_REQUIRE(on_device_.dirty[c], what, ", which is clean: its home has the same bytes");
    on_device_.dirty[c] = false;
    return;
  }
  KUAFU_REQUIRE(!on_device_.dirty[c] || uses_.is_dead(move.chunk, moment_), what,
                ", which is dirty and read again: write it back first");
  on_device_.resident[c] = on_device_.dirty[c] = false;
  chunk_bytes_ -= trace_.chunks[c].bytes;
}

int64_t Rules::compute() {
  const Moment& moment = trace_.moments[static_cast<size_t>(moment_)];
  for (const ChunkUse& use : moment.uses) {
    if (!needs_device(use.access)) {
      KUAFU_REQUIRE(!on_device_.has(use.chunk), "moment ", moment_, " changes chunk ", use.chunk,
                    " at home while it is on the device, where it would be old");
      continue;
    }
    KUAFU_REQUIRE(on_device_.has(use.chunk), "moment ", moment_, " uses chunk ", use.chunk,
                  ", which is not on the device");
    if (writes(use.access)) on_device_.dirty[static_cast<size_t>(use.chunk)] = true;
  }
  const int64_t live = moment.in_use + chunk_bytes_;
  KUAFU_REQUIRE(live <= budget_, "moment ", moment_, " computes with ", live,
                " live bytes, budget ", budget_, ": ", chunk_bytes_, " of chunks and ",
                moment.in_use, " in use");
  moment_ = (moment_ + 1) % trace_.num_moments();
  return live;
}

Traffic traffic_of(const UseTrace& trace, const std::vector<Move>& moves) {
  Traffic traffic;
  for (const Move& move : moves) {
    const int64_t bytes = trace.chunks[static_cast<size_t>(move.chunk)].bytes;
    if (move.kind == MoveKind::kLoad) traffic.loaded += bytes;
    if (move.kind == MoveKind::kWriteBack) traffic.written_back += bytes;
  }
  return traffic;
}

ReplayedMoves replay(const UseTrace& trace, int64_t budget, const OnDevice& start,
                     const std::vector<Move>& moves, int64_t steps) {
  check(trace);
  Rules rules(trace, budget, start);
  ReplayedMoves out;
  auto next = moves.begin();
  for (int64_t t = 0; t < steps * trace.num_moments(); ++t) {
    for (; next != moves.end() && next->moment == t; ++next) rules.move(*next);
    out.live.push_back(rules.compute());
  }
  KUAFU_REQUIRE(next == moves.end(), "move \"", *next, "\" comes behind its moment, or beyond the ",
                steps * trace.num_moments(), " moments of ", steps, " steps");
  out.end = rules.on_device();
  return out;
}

}  // namespace kuafu::memory
