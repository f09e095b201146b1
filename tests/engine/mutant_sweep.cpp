// SPDX-License-Identifier: Apache-2.0
//
// Mutants found by counting: what a family calls in its first step, spoilt here and there.

#include <set>

#include "tests/engine/mutants.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Action = CommFault::Action;

Verb verb_named(const std::string& name) {
  for (int v = 0; v < kNumVerbs; ++v) {
    if (to_string(static_cast<Verb>(v)) == name) return static_cast<Verb>(v);
  }
  throw ConfigError("no verb " + name);
}

bool can_be_spoilt(Verb verb) {
  return verb == Verb::kBroadcast || verb == Verb::kReduce || verb == Verb::kAllReduce ||
         verb == Verb::kAllGather || verb == Verb::kReduceScatter || verb == Verb::kAllToAll ||
         verb == Verb::kSendRecv || verb == Verb::kRecv;
}

void add(std::vector<Mutant>& all, const Plan& plan, const std::string& name,
         const CommFault& fault) {
  all.push_back({.name = name, .plan = plan, .fired = std::make_shared<std::atomic<int64_t>>(0)});
  set_fault(all.back(), fault);
}

}  // namespace

std::vector<Mutant> swept_mutants(const std::string& family_name) {
  const Plan plan = mutated_plan(family_name);
  Plan one_step = plan;
  one_step.train.steps = 1;
  one_step.train.validation_batches = 0;
  std::vector<Mutant> all;
  const TrafficByAxis traffic_of_rank_0 = run_plan(one_step)[0].traffic;
  for (const auto& [axis, traffic] : traffic_of_rank_0) {
    for (const auto& [name, calls] : traffic.calls) {
      const Verb verb = verb_named(name);
      if (!can_be_spoilt(verb)) continue;
      const std::string where = text(" ", name, " on ", axis);
      for (const int64_t at : std::set<int64_t>{1, (calls + 1) / 2, calls}) {
        const std::string which = text(family_name, ": call ", at, " of", where);
        add(all, plan, which + " dropped",
            {.action = Action::kDrop, .axis = axis, .verb = verb, .at = at});
        add(all, plan, which + " times -1",
            {.action = Action::kScale, .axis = axis, .verb = verb, .at = at, .factor = -1});
      }
      add(all, plan, text(family_name, ": every", where, " times 1.001"),
          {.action = Action::kScale, .axis = axis, .verb = verb, .at = 0, .factor = 1.001});
    }
  }
  return all;
}

}  // namespace kuafu::tests
