// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/algorithms/messages.h"

#include <algorithm>
#include <cstring>

#include "kuafu/comm/reduction.h"
#include "kuafu/device/device.h"

namespace kuafu::algorithms {

namespace {

Buffer pick(const Span& span, const Messages::Memory& memory) {
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

Buffer Messages::at(const Span& span) const { return pick(span, memory_); }

namespace {

device::Combine combine_of(ReduceOp op) {
  if (op == ReduceOp::kSum) return device::Combine::kSum;
  return op == ReduceOp::kMax ? device::Combine::kMax : device::Combine::kMin;
}

void work_on_device(const Local& local, const Buffer& into, const Buffer& from, ReduceOp op) {
  const device::StreamView stream(into.stream);
  if (local.kind != Local::Kind::kReduce) {
    return device::copy(into.data, from.data, into.bytes(), stream);
  }
  const void* const sources[] = {into.data, from.data};
  void* const target = into.data;
  device::combine(into.dtype, combine_of(op), sources, {&target, 1}, into.count, stream);
}

}  // namespace

void do_work(const Local& local, const Messages::Memory& memory, ReduceOp op) {
  const Buffer into = pick(local.into, memory), from = pick(local.from, memory);
  if (into.data == nullptr || into.data == from.data || into.count == 0) return;
  if (into.place == Place::kDevice) return work_on_device(local, into, from, op);
  if (local.kind == Local::Kind::kReduce) {
    accumulate(into.dtype, op, into.data, from.data, into.count);
  } else {
    std::memcpy(into.data, from.data, static_cast<size_t>(into.bytes()));
  }
}

}  // namespace kuafu::algorithms
