// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/algorithms/execution.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "kuafu/comm/reduction.h"

namespace kuafu::algorithms {

// Between processes the kernel copies page by page. A destination a few bytes ahead of its source
// in their pages, as memory fresh from `new` is, makes that two to three times slower (measured on
// Zen 3).
constexpr int64_t kAlignment = 4096;

ScratchPool::Scratch ScratchPool::take(int64_t bytes) {
  const auto fits = [bytes](const Scratch& scratch) { return scratch.bytes >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) {
    if (!free_.empty()) free_.pop_back();  // the larger one takes its place
    const int64_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, static_cast<size_t>(room));
    if (memory == nullptr) throw std::bad_alloc();
    return {std::unique_ptr<std::byte[], Free>(static_cast<std::byte*>(memory)), bytes};
  }
  Scratch scratch = std::move(*found);
  free_.erase(found);
  return scratch;
}

void ScratchPool::give_back(Scratch scratch) {
  if (scratch.bytes > 0) free_.push_back(std::move(scratch));
}

Execution::Execution(const Call& call, Lanes lanes, const Setting& setting, int tag)
    : call_(call),
      lanes_(std::move(lanes)),
      setting_(setting),
      element_(size_of(call.dtype())),
      tracks_(static_cast<size_t>(std::min<int64_t>(kLanesAtOnce, lanes_.num_lanes))) {
  // Lanes that share a tag follow each other on every rank, so their messages cannot be mixed up.
  for (size_t k = 0; k < tracks_.size(); ++k) {
    tracks_[k].lane = static_cast<int64_t>(k);
    tracks_[k].tag = tag + static_cast<int>(k);
    start_lane(tracks_[k]);
  }
}

Execution::~Execution() {
  for (Track& track : tracks_) setting_.pool.give_back(std::move(track.scratch));
}

bool Execution::advance() {
  bool is_done = true;
  for (Track& track : tracks_) is_done = advance(track) && is_done;
  return is_done;
}

bool Execution::advance(Track& track) {
  while (!track.is_done) {
    if (!are_through(track.receives)) return false;
    if (!track.has_worked && may_work_while_sending(track)) work(track);
    if (!are_through(track.sends)) return false;
    if (!track.has_worked) work(track);
    if (track.next_round < track.program.rounds.size()) {
      start_round(track);
    } else {
      track.lane += static_cast<int64_t>(tracks_.size());
      start_lane(track);
    }
  }
  return true;
}

bool Execution::are_through(std::vector<int>& messages) {
  if (!messages.empty() && !setting_.wire.test(messages)) return false;
  messages.clear();
  return true;
}

// Of T tracks, track t runs lanes t, t + T, t + 2T, ...: the same on all ranks.
void Execution::start_lane(Track& track) {
  track.is_done = track.lane >= lanes_.num_lanes;
  if (track.is_done) return;
  track.program = lanes_.lane(track.lane);
  KUAFU_CHECK(!track.program.rounds.empty(), "a program without rounds for ", describe(call_));
  const int64_t bytes = track.program.scratch * element_;
  if (bytes > track.scratch.bytes) {
    setting_.pool.give_back(std::move(track.scratch));
    track.scratch = setting_.pool.take(bytes);
  }
  track.next_round = 0;
  start_round(track);
}

void Execution::start_round(Track& track) {
  const Round& round = track.program.rounds[track.next_round++];
  track.has_worked = round.locals.empty();
  // Sends first: a receive whose message already waits is copied on the spot, and the peer would
  // not hear of this rank's message before that.
  for (const Transfer& t : round.sends) {
    const int64_t bytes = t.span.range.count * element_;
    track.sends.push_back(setting_.wire.send(at(track, t.span), bytes, t.peer, track.tag));
    if (setting_.entry != nullptr && bytes > 0) book_sent(bytes, t.peer);
  }
  for (const Transfer& t : round.receives) {
    const int64_t bytes = t.span.range.count * element_;
    track.receives.push_back(setting_.wire.receive(at(track, t.span), bytes, t.peer, track.tag));
    if (setting_.entry != nullptr && bytes > 0) book_received(bytes, t.peer);
  }
}

// True where no local result goes over bytes that leave in the same round.
bool Execution::may_work_while_sending(const Track& track) const {
  const Round& round = track.program.rounds[track.next_round - 1];
  const auto end = [&](const BufferSlice& span) {
    return at(track, span) + span.range.count * element_;
  };
  for (const Transfer& t : round.sends) {
    for (const Local& local : round.locals) {
      if (at(track, local.into) < end(t.span) && at(track, t.span) < end(local.into)) return false;
    }
  }
  return true;
}

void Execution::work(Track& track) {
  track.has_worked = true;
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

std::byte* Execution::at(const Track& track, const BufferSlice& span) const {
  void* base = track.scratch.memory.get();
  if (span.area == Area::kOut) base = call_.out.data;
  if (span.area == Area::kIn) base = call_.in.data;
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + span.range.offset * element_;
}

void Execution::book_sent(int64_t bytes, int peer) {
  setting_.entry->bytes_sent += bytes;
  setting_.entry->messages += 1;
  setting_.entry->wire_peers.insert(setting_.members[static_cast<size_t>(peer)]);
}

void Execution::book_received(int64_t bytes, int peer) {
  setting_.entry->bytes_received += bytes;
  setting_.entry->received[static_cast<size_t>(call_.verb)] += bytes;
  setting_.entry->wire_peers.insert(setting_.members[static_cast<size_t>(peer)]);
}

}  // namespace kuafu::algorithms
