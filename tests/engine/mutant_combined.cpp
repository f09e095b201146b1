// SPDX-License-Identifier: Apache-2.0
//
// Mutants of ways to agree, and of pipelines under ZeRO, found by counting their calls.

#include <algorithm>
#include <set>

#include "tests/engine/mutants.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Action = CommFault::Action;

const std::vector<Verb>& spoilable() {
  static const std::vector<Verb> all = {Verb::kBroadcast, Verb::kReduce,   Verb::kAllReduce,
                                        Verb::kAllGather, Verb::kAllToAll, Verb::kReduceScatter,
                                        Verb::kSendRecv,  Verb::kRecv};
  return all;
}

/// SGD with a clip that bites; two micro-batches; a bucket a tensor, so that every gradient has a
/// sum of its own.
Plan spoilable_plan(const Overrides& more) {
  Overrides all = {{"optimizer.kind", "sgd"}, {"optimizer.lr", "0.1"},
                   {"optimizer.clip", "0.1"}, {"model.sequence", "8"},
                   {"model.hidden", "16"},    {"train.micro_batch", "2"},
                   {"train.batch", "12"},     {"parallel.data.bucket", "1"}};
  all.insert(all.end(), more.begin(), more.end());
  return small_plan(all);
}

template <class Fault>
Mutant mutant_of(const Sweep& sweep, const std::string& what, const Fault& fault) {
  Mutant m{.name = text(sweep.name, ": ", what),
           .plan = sweep.plan,
           .fired = std::make_shared<std::atomic<int64_t>>(0)};
  set_fault(m, fault);
  return m;
}

/// Calls of a verb on the sweep's axis in one step by the rank that makes most of them.
struct Busiest {
  int64_t calls = 0;
  int place = 0;  ///< in its group
};

Busiest busiest(const Sweep& sweep, const std::vector<RankResult>& ranks, Verb verb) {
  Busiest most;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto axis = ranks[r].traffic.find(sweep.axis);
    if (axis == ranks[r].traffic.end()) continue;
    const auto calls = axis->second.calls.find(std::string(to_string(verb)));
    if (calls == axis->second.calls.end() || calls->second <= most.calls) continue;
    most = {calls->second, sweep.place(static_cast<int>(r))};
  }
  return most;
}

int itself(int rank) { return rank; }
int in_pairs(int rank) { return rank % 2; }
int of_pairs(int rank) { return rank / 2; }

}  // namespace

std::vector<Mutant> spoilt_calls(const Sweep& sweep) {
  Plan one_step = sweep.plan;
  one_step.train.steps = 1;
  one_step.train.validation_batches = 0;
  const std::vector<RankResult> ranks = run_plan(one_step);
  std::vector<Mutant> all;
  for (const Verb verb : spoilable()) {
    const Busiest most = busiest(sweep, ranks, verb);
    if (most.calls == 0) continue;
    const auto add = [&](const std::string& what, CommFault fault) {
      fault.axis = sweep.axis;
      fault.verb = verb;
      fault.depth = sweep.depth;
      const std::string which = fault.at == 0 ? "every" : text("call ", fault.at, " of");
      all.push_back(mutant_of(
          sweep, text(what, " ", which, " ", to_string(verb), " on ", sweep.axis), fault));
    };
    const int64_t middle = (most.calls + 1) / 2;
    for (const int64_t at : std::set<int64_t>{1, middle, most.calls}) {
      add("drops", {.action = Action::kDrop, .at = at});
      add("on one rank drops", {.action = Action::kDrop, .at = at, .rank = most.place});
    }
    add("halves", {.action = Action::kScale, .at = middle, .factor = 0.5});
    add("negates", {.action = Action::kScale, .at = 1, .factor = -1});
    add("scales by 1.001", {.action = Action::kScale, .at = 0, .factor = 1.001});
    if (most.calls > 1) add("gives the stale buffer in", {.action = Action::kStale, .at = 0});
  }
  return all;
}

Mutant harmless_sweep(const Sweep& sweep) {
  return mutant_of(sweep, "changes nothing",
                   CommFault{.axis = sweep.axis, .at = int64_t{1} << 40, .depth = sweep.depth});
}

std::vector<Sweep> mode_sweeps() {
  const auto plan = [](const char* mode, const char* replicas, Overrides more = {}) {
    more.emplace_back("parallel.data", replicas);
    more.emplace_back("parallel.data.mode", mode);
    if (std::string(replicas) == "4") more.emplace_back("train.batch", "16");
    return spoilable_plan(more);
  };
  const Plan nodes = plan("hierarchical", "4", {{"cluster.ranks_per_node", "2"}});
  return {{"ring of 3", plan("ring", "3"), "data", 0, itself},
          {"tree of 3", plan("tree", "3"), "data", 0, itself},
          {"hierarchical, 2 nodes of 2", nodes, "data.intra", 1, in_pairs},
          {"hierarchical, 2 nodes of 2", nodes, "data.inter", 1, of_pairs},
          {"1 parameter server of 3", plan("parameter_server", "3"), "data", 0, itself},
          {"3 parameter servers", plan("parameter_server", "3", {{"parallel.data.servers", "3"}}),
           "data", 0, itself}};
}

std::vector<Sweep> zero_pipeline_sweeps() {
  struct Named {
    const char *schedule, *chunks;
  };
  std::vector<Sweep> all;
  for (const Named& n : {Named{"gpipe", "1"},
                         {"1f1b", "1"},
                         {"interleaved", "2"},
                         {"zero_bubble", "1"},
                         {"zbv", "2"}}) {
    for (int stage = 1; stage <= 3; ++stage) {
      const Plan plan = spoilable_plan({{"parallel.pipeline.size", "2"},
                                        {"parallel.pipeline.schedule", n.schedule},
                                        {"parallel.pipeline.chunks", n.chunks},
                                        {"parallel.data", "2"},
                                        {"parallel.zero", text(stage)}});
      // Ranks are pipeline x data.
      const std::string name = text(n.schedule, " under ZeRO-", stage);
      all.push_back({name, plan, "data", 0, in_pairs});
      all.push_back({name, plan, "pipeline", 0, of_pairs});
    }
  }
  return all;
}

std::vector<Mutant> zero_pipeline_mutants(const Sweep& sweep) {
  std::vector<Mutant> all = spoilt_calls(sweep);
  if (sweep.axis != "pipeline") return all;
  using Product = SchemeFault::Product;
  const int last = static_cast<int>(sweep.plan.parallel.pipeline.stages()) - 1;
  all.push_back(mutant_of(sweep, "a weight gradient is skipped",
                          SchemeFault{.product = Product::kWeightGrad, .at = 3, .factor = 0}));
  all.push_back(mutant_of(sweep, "the first stage swaps two micro-batches",
                          StageFault{.action = StageFault::Action::kSwapSamples, .stage = 0}));
  all.push_back(mutant_of(sweep, "the last stage reuses the activations before",
                          StageFault{.stage = last, .micro_batch = 1}));
  all.push_back(
      mutant_of(sweep, "a stage loses a gradient",
                StageFault{.action = StageFault::Action::kScaleGrad, .stage = 0, .factor = 0}));
  all.push_back(mutant_of(sweep, "a replica of one stage changes places with one of the other",
                          PlaceFault{1, 2, ""}));
  // Where the first and the last stage share a rank, nothing is tied across ranks.
  if (sweep.plan.parallel.pipeline.schedule == "zbv") return all;
  for (const int rank : {-1, 1}) {
    all.push_back(mutant_of(
        sweep, rank < 0 ? "the tied table is not summed" : "the last stage keeps its own sum of it",
        CommFault{.axis = "pipeline", .rank = rank, .depth = 1}));
  }
  return all;
}

}  // namespace kuafu::tests
