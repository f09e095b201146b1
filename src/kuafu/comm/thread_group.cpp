// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/thread_group.h"

#include <algorithm>
#include <cstring>
#include <exception>

namespace kuafu {

namespace {

// True where sender and receiver of an all_to_all disagree about the elements between them.
bool splits_differ(const Operation& operation, int n, int& from, int& to) {
  for (from = 0; from < n; ++from) {
    for (to = 0; to < n; ++to) {
      if (operation.call(from).splits.send[static_cast<size_t>(to)] !=
          operation.call(to).splits.recv[static_cast<size_t>(from)]) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

ThreadGroup::ThreadGroup(ThreadWorld& world, std::vector<int> members)
    : world_(world),
      members_(std::make_shared<const std::vector<int>>(std::move(members))),
      sent_(members_->size()),
      expected_(members_->size()) {}

ThreadGroup::~ThreadGroup() {
  if (world_.has_failed() || std::uncaught_exceptions() > 0) return;
  for (size_t to = 0; to < sent_.size(); ++to) {
    for (const Message& m : sent_[to]) {
      const int from = members()[static_cast<size_t>(m.from)];
      world_.fail(from, std::make_exception_ptr(CollectiveMismatch(
                            text("rank ", from, " called ", describe(*m.operation->first_call()),
                                 " and rank ", members()[to], " never received it"))));
    }
  }
}

std::shared_ptr<Operation> ThreadGroup::post(int index, int64_t sequence, const Call& call,
                                             const std::string& label) {
  const int me = members()[static_cast<size_t>(index)];
  world_.note_call(me, call, sequence, label);
  std::shared_ptr<Operation> operation;
  bool is_last = false;
  {
    std::lock_guard lock(mutex_);
    const auto slot = static_cast<size_t>(sequence - first_open_);
    while (open_.size() <= slot) {
      open_.push_back(std::make_shared<Operation>(
          world_, members_, label, first_open_ + static_cast<int64_t>(open_.size())));
    }
    operation = open_[slot];
    const Call* first = operation->first_call();
    if (first != nullptr && !agree(*first, call)) {
      mismatch(index, text(operation->position(), " (ranks ", describe_members(), "): rank ",
                           operation->first_participant(), " called ", describe(*first), ", rank ",
                           me, " called ", describe(call)));
    }
    is_last = operation->post(index, call);
    if (is_last) {  // every member has posted all earlier calls too
      open_.pop_front();
      ++first_open_;
    }
  }
  if (!is_last) return operation;
  int from = 0, to = 0;
  if (call.verb == Verb::kAllToAll && splits_differ(*operation, size(), from, to)) {
    mismatch(index,
             text(operation->position(), ": rank ", members()[static_cast<size_t>(from)],
                  " called all_to_all with ",
                  operation->call(from).splits.send[static_cast<size_t>(to)], " elements for rank ",
                  members()[static_cast<size_t>(to)], ", which called all_to_all expecting ",
                  operation->call(to).splits.recv[static_cast<size_t>(from)]));
  }
  operation->seal(me);
  return operation;
}

std::shared_ptr<Operation> ThreadGroup::send(int index, const Call& call, Sending sending,
                                             const std::string& label) {
  Call message = call;
  message.verb = Verb::kSend;
  message.out = {};
  message.from = -1;
  std::vector<std::byte> payload;
  if (sending == Sending::kFromCopy) {
    payload.resize(static_cast<size_t>(call.in.bytes()));
    if (!payload.empty()) std::memcpy(payload.data(), call.in.data, payload.size());
    message.in.data = payload.data();
  }
  const auto operation = meet({index, call.root, 0}, message, std::move(payload), label);
  return sending == Sending::kFromCopy || operation->is_over() ? nullptr : operation;
}

std::shared_ptr<Operation> ThreadGroup::recv(int index, const Call& call,
                                             const std::string& label) {
  Call message = call;
  message.verb = Verb::kRecv;
  message.in = {};
  message.root = -1;
  const auto operation = meet({call.from, index, 1}, message, {}, label);
  return operation->is_over() ? nullptr : operation;
}

// Messages of one sender, receiver and tag are matched in the order of the calls.
std::shared_ptr<Operation> ThreadGroup::meet(const Ends& ends, const Call& call,
                                             std::vector<std::byte> payload,
                                             const std::string& label) {
  const int from = members()[static_cast<size_t>(ends.from)];
  const int to = members()[static_cast<size_t>(ends.to)];
  world_.note_call(ends.side == 0 ? from : to, call, CallNote::kMessage, label);
  std::shared_ptr<Operation> operation;
  {
    std::lock_guard lock(mutex_);
    auto& mine = (ends.side == 0 ? sent_ : expected_)[static_cast<size_t>(ends.to)];
    auto& others = (ends.side == 0 ? expected_ : sent_)[static_cast<size_t>(ends.to)];
    const auto found = std::find_if(others.begin(), others.end(), [&](const Message& m) {
      return m.from == ends.from && m.tag == call.tag;
    });
    if (found == others.end()) {
      operation = std::make_shared<Operation>(
          world_, std::make_shared<const std::vector<int>>(std::vector<int>{from, to}), label,
          CallNote::kMessage);
      operation->own_payload(std::move(payload));
      operation->post(ends.side, call);
      mine.push_back({ends.from, call.tag, operation});
      return operation;
    }
    operation = found->operation;
    const Call& other = *operation->first_call();
    if (other.dtype() != call.dtype() || other.count() != call.count() ||
        (call.count() > 0 && other.place() != call.place())) {
      mismatch(
          ends.side == 0 ? ends.from : ends.to,
          text(operation->position(), ": rank ", ends.side == 0 ? to : from, " called ",
               describe(other), ", rank ", ends.side == 0 ? from : to, " called ", describe(call)));
    }
    others.erase(found);
    if (ends.side == 0) operation->own_payload(std::move(payload));
    operation->post(ends.side, call);
  }
  operation->seal(ends.side == 0 ? from : to);
  return operation;
}

std::shared_ptr<ThreadGroup> ThreadGroup::split(int index, int64_t sequence,
                                                const SplitRule& rule) {
  SplitTable table(rule, size());
  std::lock_guard lock(mutex_);
  auto [at, is_first] = splits_.try_emplace(sequence);
  Split& split = at->second;
  if (is_first) {
    split.num_pending = size();
    for (const std::vector<int>& group : table.groups) {
      std::vector<int> world_ranks;
      for (const int r : group) world_ranks.push_back(members()[static_cast<size_t>(r)]);
      split.groups.push_back(std::make_shared<ThreadGroup>(world_, std::move(world_ranks)));
    }
    split.table = std::move(table);
  } else if (table.group_of != split.table.group_of || table.index_in != split.table.index_in) {
    mismatch(index, text("split ", sequence, " of the group of ranks ", describe_members(),
                         ": the rule of rank ", members()[static_cast<size_t>(index)],
                         " gives other groups than that of the ranks before; a rule must depend on"
                         " its argument only"));
  }
  const int group = split.table.group_of[static_cast<size_t>(index)];
  const auto mine = group < 0 ? nullptr : split.groups[static_cast<size_t>(group)];
  if (--split.num_pending == 0) splits_.erase(at);
  return mine;
}

std::string ThreadGroup::describe_members() const {
  constexpr size_t kMost = 16;
  std::string list;
  for (size_t i = 0; i < std::min(kMost, members().size()); ++i) {
    list += text(i == 0 ? "" : ", ", members()[i]);
  }
  return members().size() > kMost ? list + ", ..." : list;
}

void ThreadGroup::mismatch(int index, const std::string& what) {
  const auto error = std::make_exception_ptr(CollectiveMismatch(what));
  world_.fail(members()[static_cast<size_t>(index)], error);
  std::rethrow_exception(error);
}

}  // namespace kuafu
