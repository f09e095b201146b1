// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "kuafu/comm/algorithms/algorithms.h"
#include "kuafu/comm/call.h"
#include "kuafu/comm/splitting.h"
#include "kuafu/comm/trace.h"

namespace kuafu {

namespace {

/// How one split of a group came out, the same for all of its ranks: kept once.
struct SplitOutcome {
  std::vector<SplitKey> keys;     // by rank of the parent
  std::vector<int32_t> group_of;  // by rank of the parent: index of its group, -1 where left out
  std::vector<int32_t> index_in;  // by rank of the parent: rank in its group
};

struct RankRecord {
  std::vector<TraceEvent> events;
  int64_t num_calls = 0;
};

struct Recording {
  Transport transport = Transport::kThreads;
  std::vector<RankRecord> ranks;
  std::deque<std::vector<int>> groups;  // world ranks
  std::deque<std::string> labels;       // of the groups that have called, as far as known
  std::deque<std::string> marks;
  std::map<std::string, int64_t> mark_numbers;
  // By (parent group, number of the split on it). Ranks are recorded one after another, so the
  // first one evaluates the rule and the others look it up.
  std::map<std::pair<int, int64_t>, SplitOutcome> splits;

  const SplitOutcome& split(int parent, int64_t number, int index, const SplitRule& rule);
};

const SplitOutcome& Recording::split(int parent, int64_t number, int index, const SplitRule& rule) {
  const auto known = splits.find({parent, number});
  if (known != splits.end()) {
    const SplitKey given = rule(index), first = known->second.keys[static_cast<size_t>(index)];
    KUAFU_REQUIRE(given.color == first.color && given.key == first.key, "split ", number,
                  " of group ", parent, ": the rule of rank ", index, " gives it color ",
                  given.color, ", key ", given.key, "; that of the rank recorded first gave ",
                  first.color, ", ", first.key, "; a rule must depend on its argument only");
    return known->second;
  }
  const std::vector<int>& members = groups[static_cast<size_t>(parent)];
  SplitTable table(rule, static_cast<int>(members.size()));
  SplitOutcome outcome{std::move(table.keys), {}, std::move(table.index_in)};
  for (const int group : table.group_of) {
    outcome.group_of.push_back(group < 0 ? -1 : static_cast<int32_t>(groups.size()) + group);
  }
  for (std::vector<int>& group : table.groups) {
    for (int& r : group) r = members[static_cast<size_t>(r)];
    groups.push_back(std::move(group));
  }
  return splits.emplace(std::pair(parent, number), std::move(outcome)).first->second;
}

class RecordedWork : public PendingWork {
 public:
  RecordedWork(RankRecord& record, const TraceEvent& issue) : record_(record), wait_(issue) {
    wait_.kind = TraceEvent::Kind::kWait;
  }
  void wait() override { record_.events.push_back(wait_); }
  // Recorded alone, a rank never knows that something has come: it is waited for where the program
  // waits at the latest.
  bool test() override { return false; }

 private:
  RankRecord& record_;
  TraceEvent wait_;
};

/// What calls of one rank of one group put on the wire, each kind of call summed up once: a step
/// repeats the same few, and the program of a large group is long.
class WireBook {
 public:
  const WireTraffic& of(const Call& call, algorithms::GroupRank me) {
    const auto [at, is_new] = known_.try_emplace(
        {call.verb, call.root, call.count(), call.dtype(), call.splits.send, call.splits.recv});
    if (is_new) {
      at->second = algorithms::traffic(algorithms::choose(call, me), size_of(call.dtype()));
    }
    return at->second;
  }

 private:
  using Key =
      std::tuple<Verb, int, int64_t, DType, std::vector<int64_t>, std::vector<int64_t>>;  // splits
  std::map<Key, WireTraffic> known_;
};

class SimulatedCommunicator final : public CallCommunicator {
 public:
  SimulatedCommunicator(Recording& recording, int group, int index)
      : recording_(recording),
        group_(group),
        index_(index),
        members_(recording.groups[static_cast<size_t>(group)]) {}

  std::string_view name() const override { return "simulated"; }
  int rank() const override { return index_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    const auto& outcome = recording_.split(group_, num_splits_++, index_, rule);
    const int group = outcome.group_of[static_cast<size_t>(index_)];
    if (group < 0) return nullptr;
    return std::make_unique<SimulatedCommunicator>(recording_, group,
                                                   outcome.index_in[static_cast<size_t>(index_)]);
  }

 protected:
  Place place() const override { return Place::kMeta; }

  void enter(const Call& call) override {
    if (recording_.transport == Transport::kThreads || book() == nullptr) {
      return CallCommunicator::enter(call);
    }
    const bool is_literal = size() == 1 || call.is_point_to_point();
    enter_call(call, Counting::kWire,
               is_literal ? convention(call, size(), rank()) : wires_.of(call, {size(), rank()}));
  }

  Work start(const Call& call) override {
    RankRecord& record =
        recording_.ranks[static_cast<size_t>(members_[static_cast<size_t>(index_)])];
    TraceEvent event{.kind = TraceEvent::Kind::kIssue, .verb = call.verb, .group = group_};
    event.peer = call.verb == Verb::kRecv ? call.from : call.root;
    event.from = call.verb == Verb::kSendRecv ? call.from : -1;
    event.tag = call.tag;
    event.sequence = record.num_calls++;
    event.bytes = call.count() * size_of(call.dtype());
    record.events.push_back(event);
    auto& labels = recording_.labels;
    if (labels.size() < recording_.groups.size()) labels.resize(recording_.groups.size());
    if (labels[static_cast<size_t>(group_)].empty()) labels[static_cast<size_t>(group_)] = label();
    return Work(std::make_unique<RecordedWork>(record, event));
  }

 private:
  Recording& recording_;
  int group_;
  int index_;
  const std::vector<int>& members_;
  int64_t num_splits_ = 0;
  WireBook wires_;
};

}  // namespace

struct SimulatedWorld::State : Recording {};

SimulatedWorld::SimulatedWorld(int ranks, Transport transport) : state_(std::make_unique<State>()) {
  KUAFU_REQUIRE(ranks >= 1, "cannot simulate ", ranks, " ranks; give 1 or more");
  state_->transport = transport;
  state_->ranks.resize(static_cast<size_t>(ranks));
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  state_->groups.push_back(std::move(all));
}

SimulatedWorld::~SimulatedWorld() = default;

int SimulatedWorld::size() const { return static_cast<int>(state_->ranks.size()); }

std::unique_ptr<Communicator> SimulatedWorld::communicator(int rank) {
  KUAFU_REQUIRE(rank >= 0 && rank < size(), "rank ", rank, " of a simulated world of ", size());
  return std::make_unique<SimulatedCommunicator>(*state_, 0, rank);
}

void SimulatedWorld::compute(int rank, int64_t flops, int64_t bytes_moved) {
  auto& events = state_->ranks.at(static_cast<size_t>(rank)).events;
  if (events.empty() || events.back().kind != TraceEvent::Kind::kCompute) events.emplace_back();
  events.back().flops += flops;
  events.back().bytes_moved += bytes_moved;
}

const std::vector<TraceEvent>& SimulatedWorld::trace(int rank) const {
  return state_->ranks.at(static_cast<size_t>(rank)).events;
}

void SimulatedWorld::mark(int rank, const std::string& what) {
  const auto [at, is_new] =
      state_->mark_numbers.try_emplace(what, static_cast<int64_t>(state_->marks.size()));
  if (is_new) state_->marks.push_back(what);
  state_->ranks.at(static_cast<size_t>(rank))
      .events.push_back({.kind = TraceEvent::Kind::kMark, .sequence = at->second});
}

const std::deque<std::string>& SimulatedWorld::marks() const { return state_->marks; }

const std::string& SimulatedWorld::label(int group) const {
  static const std::string none;
  const auto index = static_cast<size_t>(group);
  return index < state_->labels.size() ? state_->labels[index] : none;
}

const std::deque<std::vector<int>>& SimulatedWorld::groups() const { return state_->groups; }

}  // namespace kuafu
