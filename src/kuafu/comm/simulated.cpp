// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/simulated.h"

#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "kuafu/base/worlds.h"
#include "kuafu/comm/algorithms/algorithms.h"
#include "kuafu/comm/call.h"
#include "kuafu/comm/splitting.h"

namespace kuafu {

/// How one split of a group came out, the same for all of its ranks: kept once.
struct SplitOutcome {
  std::vector<SplitKey> keys;     // by rank of the parent
  std::vector<int32_t> group_of;  // by rank of the parent: index of its group, -1 where left out
  std::vector<int32_t> index_in;  // by rank of the parent: rank in its group
};

struct SimulatedSplits {
  Transport transport = Transport::kThreads;
  int size = 0;
  std::deque<std::vector<int>> groups;  // world ranks
  // By (parent group, number of the split on it). Ranks are recorded one after another, so the
  // first one evaluates the rule and the others look it up.
  std::map<std::pair<int, int64_t>, SplitOutcome> splits;

  const SplitOutcome& split(int parent, int64_t number, int index, const SplitRule& rule);
};

const SplitOutcome& SimulatedSplits::split(int parent, int64_t number, int index,
                                           const SplitRule& rule) {
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

namespace {

/// Recorded alone, a rank never knows that something has come: it is waited for where the program
/// waits at the latest.
class SimulatedWork : public PendingWork {
 public:
  void wait() override {}
  bool test() override { return false; }
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
  SimulatedCommunicator(SimulatedSplits& splitting, int group, int index)
      : splitting_(splitting),
        group_(group),
        index_(index),
        members_(splitting.groups[static_cast<size_t>(group)]) {}

  std::string_view name() const override { return worlds::kSimulated; }
  int rank() const override { return index_; }
  int size() const override { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const override { return members_; }

  std::unique_ptr<Communicator> split(const SplitRule& rule) override {
    const auto& outcome = splitting_.split(group_, num_splits_++, index_, rule);
    const int group = outcome.group_of[static_cast<size_t>(index_)];
    if (group < 0) return nullptr;
    return std::make_unique<SimulatedCommunicator>(splitting_, group,
                                                   outcome.index_in[static_cast<size_t>(index_)]);
  }

 protected:
  Takes takes() const override { return Takes::kMeta; }

  void enter(const Call& call) override {
    if (splitting_.transport == Transport::kThreads || book() == nullptr) {
      return CallCommunicator::enter(call);
    }
    const bool is_literal = size() == 1 || call.is_point_to_point();
    enter_call(call, Counting::kWire,
               is_literal ? convention(call, size(), rank()) : wires_.of(call, {size(), rank()}));
  }

  Work start(const Call&) override { return Work(std::make_unique<SimulatedWork>()); }
  int64_t group_number() const override { return group_; }

 private:
  SimulatedSplits& splitting_;
  int group_;
  int index_;
  const std::vector<int>& members_;
  int64_t num_splits_ = 0;
  WireBook wires_;
};

}  // namespace

SimulatedWorld::SimulatedWorld(int ranks, Transport transport)
    : splits_(std::make_unique<SimulatedSplits>()) {
  KUAFU_REQUIRE(ranks >= 1, "cannot simulate ", ranks, " ranks; give 1 or more");
  splits_->transport = transport;
  splits_->size = ranks;
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(r);
  splits_->groups.push_back(std::move(all));
}

SimulatedWorld::~SimulatedWorld() = default;

int SimulatedWorld::size() const { return splits_->size; }

std::unique_ptr<Communicator> SimulatedWorld::communicator(int rank) {
  KUAFU_REQUIRE(rank >= 0 && rank < size(), "rank ", rank, " of a simulated world of ", size());
  return std::make_unique<SimulatedCommunicator>(*splits_, 0, rank);
}

const std::deque<std::vector<int>>& SimulatedWorld::groups() const { return splits_->groups; }

}  // namespace kuafu
