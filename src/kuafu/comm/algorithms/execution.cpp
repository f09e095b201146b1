// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/algorithms/execution.h"

#include <algorithm>
#include <cstring>

#include "kuafu/comm/reduction.h"

namespace kuafu::algorithms {

Execution::Execution(const Call& call, Plan plan, Wire& wire, int tag, AxisLedger* entry,
                     const std::vector<int>& members)
    : call_(call),
      plan_(std::move(plan)),
      wire_(wire),
      entry_(entry),
      members_(members),
      element_(size_of(call.dtype())),
      tracks_(static_cast<size_t>(std::min<int64_t>(kLanesAtOnce, plan_.num_lanes))) {
  // Lanes that share a tag follow each other on every rank, so their messages cannot be mixed up.
  for (size_t k = 0; k < tracks_.size(); ++k) {
    tracks_[k].lane = static_cast<int64_t>(k);
    tracks_[k].tag = tag + static_cast<int>(k);
    start_lane(tracks_[k]);
  }
}

bool Execution::advance() {
  bool is_done = true;
  for (Track& track : tracks_) is_done = advance(track) && is_done;
  return is_done;
}

bool Execution::advance(Track& track) {
  while (!track.is_done) {
    if (!track.messages.empty() && !wire_.test(track.messages)) return false;
    track.messages.clear();
    finish_round(track);
    if (track.next_round < track.program.rounds.size()) {
      start_round(track);
    } else {
      track.lane += static_cast<int64_t>(tracks_.size());
      start_lane(track);
    }
  }
  return true;
}

// Of T tracks, track t runs lanes t, t + T, t + 2T, ...: the same on all ranks.
void Execution::start_lane(Track& track) {
  track.is_done = track.lane >= plan_.num_lanes;
  if (track.is_done) return;
  track.program = plan_.lane(track.lane);
  KUAFU_CHECK(!track.program.rounds.empty(), "a program without rounds for ", describe(call_));
  const int64_t bytes = track.program.scratch * element_;
  if (bytes > track.scratch_bytes) {
    track.scratch.reset(new std::byte[static_cast<size_t>(bytes)]);
    track.scratch_bytes = bytes;
  }
  track.next_round = 0;
  start_round(track);
}

void Execution::start_round(Track& track) {
  const Round& round = track.program.rounds[track.next_round++];
  for (const Transfer& t : round.receives) {
    const int64_t bytes = t.span.range.count * element_;
    track.messages.push_back(wire_.receive(at(track, t.span), bytes, t.peer, track.tag));
    if (entry_ != nullptr && bytes > 0) book_received(bytes, t.peer);
  }
  for (const Transfer& t : round.sends) {
    const int64_t bytes = t.span.range.count * element_;
    track.messages.push_back(wire_.send(at(track, t.span), bytes, t.peer, track.tag));
    if (entry_ != nullptr && bytes > 0) book_sent(bytes, t.peer);
  }
}

void Execution::finish_round(Track& track) {
  const Round& round = track.program.rounds[track.next_round - 1];
  for (const Local& local : round.locals) {
    const int64_t count = local.into.range.count;
    std::byte* into = at(track, local.into);
    const std::byte* from = at(track, local.from);
    if (count == 0 || into == from) continue;
    if (local.kind == Local::Kind::kReduce) {
      accumulate(call_.dtype(), call_.op, into, from, count);
    } else {
      std::memcpy(into, from, static_cast<size_t>(count * element_));
    }
  }
}

std::byte* Execution::at(const Track& track, const Span& span) const {
  void* base = track.scratch.get();
  if (span.area == Area::kOut) base = call_.out.data;
  if (span.area == Area::kIn) base = call_.in.data;
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + span.range.offset * element_;
}

void Execution::book_sent(int64_t bytes, int peer) {
  entry_->bytes_sent += bytes;
  entry_->messages += 1;
  entry_->wire_peers.insert(members_[static_cast<size_t>(peer)]);
}

void Execution::book_received(int64_t bytes, int peer) {
  entry_->bytes_received += bytes;
  entry_->received[static_cast<size_t>(call_.verb)] += bytes;
  entry_->wire_peers.insert(members_[static_cast<size_t>(peer)]);
}

}  // namespace kuafu::algorithms
