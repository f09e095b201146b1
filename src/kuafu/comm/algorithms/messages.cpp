// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/algorithms/messages.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kuafu/comm/device_operation.h"
#include "kuafu/comm/reduction.h"

namespace kuafu::algorithms {

namespace {

Buffer pick(const BufferSlice& span, const Messages::Memory& memory) {
  const Buffer& area = span.area == Area::kOut  ? memory.out
                       : span.area == Area::kIn ? memory.in
                                                : memory.scratch;
  return area.range(span.range.offset, span.range.count);
}

}  // namespace

Messages::Messages(Communicator& group, Program program, const Memory& memory, int tag,
                   LocalWork work)
    : group_(group),
      program_(std::move(program)),
      memory_(memory),
      tag_(tag),
      work_(std::move(work)) {
  KUAFU_REQUIRE(memory.scratch.count >= program_.scratch, "a program that needs ", program_.scratch,
                " elements of scratch was given ", memory.scratch.count);
  next_round();
}

bool Messages::advance() {
  if (is_done()) return false;
  for (Work& work : under_way_) work.wait();
  next_round();
  return !is_done();
}

/// Ends the round whose messages are through and posts those of the next.
void Messages::next_round() {
  under_way_.clear();
  if (next_round_ > 0) {
    for (const Local& local : program_.rounds[next_round_ - 1].locals) work_(local);
  }
  if (next_round_++ >= program_.rounds.size()) return;
  const Round& round = program_.rounds[next_round_ - 1];
  const size_t pairs = std::min(round.sends.size(), round.receives.size());
  for (size_t i = 0; i < pairs; ++i) {
    const Transfer &to = round.sends[i], &from = round.receives[i];
    under_way_.push_back(group_.send_recv(at(to.span), to.peer, at(from.span), from.peer, tag_));
  }
  for (size_t i = pairs; i < round.receives.size(); ++i) {
    const Transfer& from = round.receives[i];
    under_way_.push_back(group_.recv(at(from.span), from.peer, tag_));
  }
  for (size_t i = pairs; i < round.sends.size(); ++i) {
    const Transfer& to = round.sends[i];
    under_way_.push_back(group_.send(at(to.span), to.peer, tag_));
  }
}

Buffer Messages::at(const BufferSlice& span) const { return pick(span, memory_); }

void work_locally(const Local& local, const Messages::Memory& memory, ReduceOp op) {
  const Buffer into = pick(local.into, memory), from = pick(local.from, memory);
  if (into.data == nullptr || into.data == from.data || into.count == 0) return;
  if (into.place == Place::kDevice) {
    const device::StreamView stream(into.stream);
    const std::array<const void*, 2> both = {into.data, from.data};
    const std::span<const void* const> sources(both);
    const bool reduces = local.kind == Local::Kind::kReduce;
    device::combine(into.dtype, on_device(op), reduces ? sources : sources.subspan(1),
                    {&into.data, 1}, into.count, stream);
    return;
  }
  if (local.kind == Local::Kind::kReduce) {
    accumulate(into.dtype, op, into.data, from.data, into.count);
  } else {
    std::memcpy(into.data, from.data, static_cast<size_t>(into.bytes()));
  }
}

}  // namespace kuafu::algorithms
