// SPDX-License-Identifier: Apache-2.0
//
// What witnesses kept of pushes, from all ranks to rank 0. A push or update is one message in f64,
// which holds the numbers of every type:
//
//   push     | worker step norm | values ...... | gradient .... |
//   update   | worker step version updates before, after | gradient | values slots | values slots |
//                                                                    before         after

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "kuafu/comm/communicator.h"
#include "kuafu/meter/book.h"
#include "kuafu/parallel/stale/replicas.h"
#include "kuafu/parallel/stale/server.h"

namespace kuafu {
namespace {

constexpr int64_t kPushHead = 3, kUpdateHead = 5;

std::vector<Tensor*> tensors_of(MadePush& push) { return {&push.values, &push.gradient}; }
std::vector<Tensor*> tensors_of(ServedUpdate& update) {
  std::vector<Tensor*> all = {&update.gradient};
  for (ServerState* state : {&update.before, &update.after}) {
    all.push_back(&state->values);
    for (SlotTensor& slot : state->optimizer.tensors) all.push_back(&slot.tensor);
  }
  return all;
}

std::vector<double> head_of(const MadePush& push) {
  return {static_cast<double>(push.worker), static_cast<double>(push.step), push.norm};
}
std::vector<double> head_of(const ServedUpdate& update) {
  const auto of = [](int64_t x) { return static_cast<double>(x); };
  const AppliedPush& p = update.push;
  return {of(p.worker), of(p.step), of(p.version), of(update.before.optimizer.num_steps),
          of(update.after.optimizer.num_steps)};
}

template <class Record>
Tensor packed(Record record) {
  std::vector<Tensor> all = {at::tensor(head_of(record), at::kDouble)};
  for (const Tensor* t : tensors_of(record)) {
    all.push_back(t->detach().flatten().to(at::kCPU, at::kDouble));
  }
  return at::cat(all);
}

/// Tensors get the numbers of a message, in the sizes that they have.
template <class Record>
void unpack_tensors(const Tensor& message, int64_t head, Record& record) {
  int64_t at = head;
  for (Tensor* t : tensors_of(record)) {
    const int64_t count = t->numel();
    *t = message.narrow(0, at, count);
    at += count;
  }
}

int64_t number(const Tensor& message, int64_t i) {
  return static_cast<int64_t>(message[i].item<double>());
}

}  // namespace

/// What a server keeps, of the sizes that it has.
ServerState StaleReplica::empty_state(int64_t server) const {
  const FlatPart part = layout_.part(server);
  std::vector<ParamShard> pieces;
  for (const FlatSlot& slot : layout_.slots) {
    const FlatPart piece = overlap(part, slot);
    if (piece.size() == 0) continue;
    pieces.push_back({value_in(slot, piece), {}, slot.param, {"data"}});
  }
  const auto optimizer = make_optimizer(options_.plan.optimizer, options_.rules);
  optimizer->begin(pieces);
  return {at::empty({part.size()}, at::kDouble), optimizer->state()};
}

Tensor StaleReplica::on_first(const Tensor& mine, int64_t size, int from) const {
  if (from == 0) return mine;
  const auto device = layout_.slots[0].param->value.device();
  if (group_.rank() == from) group_.send(view(mine.to(device)), 0, kSeenTag).wait_host();
  if (group_.rank() != 0) return {};
  const Tensor message = at::empty({size}, at::TensorOptions(at::kDouble).device(device));
  group_.recv(view(message), from, kSeenTag).wait_host();
  return message.to(at::kCPU);
}

void StaleReplica::gather_made(int from, SeenPushes& all) const {
  const int64_t elements = layout_.elements();
  int64_t next = 0;
  for (int64_t step = begun_; step < pushed_; ++step) {
    if (!witness_->wanted().has(from, step)) continue;
    const bool is_mine = from == group_.rank();
    const Tensor mine = is_mine ? packed(witness_->made()[static_cast<size_t>(next++)]) : Tensor();
    const Tensor message = on_first(mine, kPushHead + 2 * elements, from);
    if (group_.rank() != 0) continue;
    const Tensor room = at::empty({elements}, at::kDouble);
    MadePush push{number(message, 0), number(message, 1), message[2].item<double>(), room, room};
    unpack_tensors(message, kPushHead, push);
    all.made.push_back(std::move(push));
  }
}

void StaleReplica::gather_updates(int server, SeenPushes& all) const {
  const ServerState empty = empty_state(server);
  ServedUpdate room{{}, empty.values, empty, empty};
  const int64_t size = packed(room).numel();
  size_t next = 0;
  for (int64_t i = begun_ * group_.size(); i < pushed_ * group_.size(); ++i) {
    if (!witness_->wanted().has(i % group_.size(), i / group_.size())) continue;
    const bool is_mine = server == group_.rank();
    const Tensor message =
        on_first(is_mine ? packed(witness_->updates()[next++]) : Tensor(), size, server);
    if (group_.rank() != 0) continue;
    ServedUpdate update = room;
    update.push = {number(message, 0), number(message, 1), number(message, 2)};
    update.before.optimizer.num_steps = number(message, 3);
    update.after.optimizer.num_steps = number(message, 4);
    unpack_tensors(message, kUpdateHead, update);
    all.updates[static_cast<size_t>(server)].push_back(std::move(update));
  }
}

SeenPushes StaleReplica::seen() {
  settle();
  const BookScope unbooked(nullptr);
  const at::NoGradGuard no_grad;
  SeenPushes all;
  if (!witness_) return all;
  all.updates.resize(static_cast<size_t>(servers_));
  for (int from = 0; from < group_.size(); ++from) {
    gather_made(from, all);
    if (from < servers_) gather_updates(from, all);
  }
  return all;
}

}  // namespace kuafu
