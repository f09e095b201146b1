// SPDX-License-Identifier: Apache-2.0
#include "tests/mutants/communication_places.h"

#include <map>

#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

int itself(int rank) { return rank; }
int in_pairs(int rank) { return rank % 2; }
int of_pairs(int rank) { return rank / 2; }

Overrides replicas(const char* size, const char* mode, const Overrides& more = {}) {
  const bool is_three = std::string(size) == "3";
  return keys::both({{"parallel.data", size},
                     {"parallel.data.mode", mode},
                     {"train.batch", is_three ? "12" : "16"}},
                    more);
}

/// Calls of a verb on the place's axis in one step by the rank that makes most of them.
struct Busiest {
  int64_t calls = 0;
  int rank = 0;
};

Busiest busiest(const Place& place, Plan plan, Verb verb) {
  static std::map<std::pair<std::string, int64_t>, std::vector<RankResult>> known;
  auto& ranks = known[{place.name, plan.model.sequence * 1000 + plan.train.batch}];
  if (ranks.empty()) {
    plan.train.steps = 1;
    plan.train.validation_batches = 0;
    ranks = run_plan(plan);
  }
  Busiest most;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto axis = ranks[r].traffic.find(place.axis);
    if (axis == ranks[r].traffic.end()) continue;
    const auto calls = axis->second.calls.find(std::string(to_string(verb)));
    if (calls == axis->second.calls.end() || calls->second <= most.calls) continue;
    most = {calls->second, static_cast<int>(r)};
  }
  return most;
}

}  // namespace

Overrides pipeline(const char* schedule, const char* zero) {
  const bool is_split = std::string(schedule) == "interleaved" || std::string(schedule) == "zbv";
  return {{"parallel.pipeline.size", "2"},
          {"parallel.pipeline.schedule", schedule},
          {"parallel.pipeline.chunks", is_split ? "2" : "1"},
          {"parallel.data", "2"},
          {"parallel.zero", zero}};
}

const std::vector<Place>& places() {
  using keys::sequence;
  using keys::tensor;
  const Verbs sum = {Verb::kAllReduce}, sharded = {Verb::kReduceScatter, Verb::kAllGather};
  const Overrides four = {{"train.micro_batch", "4"}};  // depth and cubes deal it out to four
  const Overrides nodes = replicas("4", "hierarchical", {{"cluster.ranks_per_node", "2"}});
  const Overrides mixture = keys::both(keys::experts("2"), {{"parallel.data", "4"}});
  static const std::vector<Place> all = {
      {"2 replicas", "data", sum, {{"parallel.data", "2"}}, 0, itself},
      {"ring of 3", "data", {Verb::kSendRecv}, replicas("3", "ring"), 0, itself},
      {"tree of 3", "data", {Verb::kRecv}, replicas("3", "tree"), 0, itself},
      {"2 nodes of 2", "data.intra", {Verb::kSendRecv}, nodes, 1, in_pairs},
      {"2 nodes of 2", "data.inter", {Verb::kSendRecv}, nodes, 1, of_pairs},
      {"3 parameter servers",
       "data",
       {Verb::kRecv},
       replicas("3", "parameter_server", {{"parallel.data.servers", "3"}}),
       0,
       itself},
      {"ZeRO-1 of 3", "data", sharded, replicas("3", "auto", {{"parallel.zero", "1"}}), 0, itself},
      {"ZeRO-2 of 3", "data", sharded, replicas("3", "auto", {{"parallel.zero", "2"}}), 0, itself},
      {"ZeRO-3 of 3", "data", sharded, replicas("3", "auto", {{"parallel.zero", "3"}}), 0, itself},
      {"1D on 2", "tensor", sum, tensor("1d", "2"), 0, itself},
      {"1D-SP on 2",
       "tensor",
       {Verb::kAllReduce, Verb::kReduceScatter, Verb::kAllGather},
       tensor("1d-sp", "2"),
       0,
       itself},
      {"2D on 4",
       "row",
       {Verb::kBroadcast, Verb::kReduce, Verb::kAllReduce, Verb::kReduceScatter},
       tensor("2d", "4"),
       0,
       nullptr},
      {"2D on 4",
       "col",
       {Verb::kBroadcast, Verb::kReduce, Verb::kAllReduce},
       tensor("2d", "4"),
       0,
       nullptr},
      {"2.5D on 8", "dep", sum, keys::both(tensor("2.5d", "8", "2"), four), 0, nullptr},
      {"2.5D on 8",
       "row",
       {Verb::kBroadcast, Verb::kReduce},
       keys::both(tensor("2.5d", "8", "2"), four),
       0,
       nullptr},
      {"3D on 8",
       "x",
       {Verb::kAllGather, Verb::kReduceScatter, Verb::kAllReduce},
       keys::both(tensor("3d", "8"), four),
       0,
       nullptr},
      {"3D on 8",
       "y",
       {Verb::kAllGather, Verb::kReduceScatter, Verb::kAllReduce},
       keys::both(tensor("3d", "8"), four),
       0,
       nullptr},
      {"3D on 8",
       "z",
       {Verb::kAllGather, Verb::kReduceScatter, Verb::kAllReduce},
       keys::both(tensor("3d", "8"), four),
       0,
       nullptr},
      {"2 replicas of 1D on 2", "data", sum,
       keys::both(tensor("1d", "2"), {{"parallel.data", "2"}}), 0, of_pairs},
      {"ring attention on 2",
       "sequence",
       {Verb::kSendRecv, Verb::kRecv, Verb::kAllReduce},
       sequence("ring", "2"),
       0,
       itself},
      {"zig-zag on 3",
       "sequence",
       {Verb::kSendRecv, Verb::kAllReduce},
       sequence("ring-zigzag", "3"),
       0,
       itself},
      {"Ulysses on 2",
       "sequence",
       {Verb::kAllToAll, Verb::kAllReduce},
       sequence("ulysses", "2"),
       0,
       itself},
      {"gathered keys on 3",
       "sequence",
       {Verb::kAllGather, Verb::kReduceScatter},
       sequence("all-gather", "3"),
       0,
       itself},
      {"experts on 2 of 4", "expert", {Verb::kAllToAll}, mixture, 0, in_pairs},
      {"experts on 2 of 4", "replica", sum, mixture, 0, of_pairs},
      {"interleaved under ZeRO-1", "data", sharded, pipeline("interleaved", "1"), 0, in_pairs},
      {"1f1b under ZeRO-2", "data", sharded, pipeline("1f1b", "2"), 0, in_pairs},
      {"zbv under ZeRO-3", "data", sharded, pipeline("zbv", "3"), 0, in_pairs},
  };
  return all;
}

std::function<void(Mutant&, const Plan&)> aimed(const Place& place, CommFault fault, size_t when) {
  return [place, fault, when](Mutant& m, const Plan& plan) mutable {
    const Busiest most = busiest(place, plan, fault.verb);
    if (most.calls == 0) return;  // the fault never comes true
    const int64_t calls[] = {1, (most.calls + 1) / 2, most.calls};
    if (fault.at != 0) fault.at = calls[when];
    if (fault.rank >= 0) fault.rank = place.place(most.rank);
    set_fault(m, fault);
  };
}

}  // namespace kuafu::tests
