// SPDX-License-Identifier: Apache-2.0
//
// Small wrongs in the way of sharded replicas: the certificate must notice each.

#include <gtest/gtest.h>

#include <iostream>

#include "tests/engine/mutants.h"
#include "tests/parallel/data/zero_plans.h"

namespace kuafu {
namespace {

using tests::CommFault;
using tests::kStages;
using tests::Mutant;
using tests::PlaceFault;
using Action = CommFault::Action;

/// SGD with a clip that bites; two micro-batches; a bucket a tensor, so that every gradient has a
/// sum of its own.
Plan mutated_plan(int64_t stage, const Overrides& more) {
  Overrides all = {{"optimizer.kind", "sgd"},     {"optimizer.lr", "0.1"},
                   {"optimizer.clip", "0.1"},     {"model.sequence", "8"},
                   {"model.hidden", "16"},        {"train.batch", "12"},
                   {"train.micro_batch", "2"},    {"parallel.data", "3"},
                   {"parallel.data.bucket", "1"}, {"parallel.zero", text(stage)}};
  all.insert(all.end(), more.begin(), more.end());
  return tests::small_plan(all);
}

class Kit {
 public:
  template <class Fault>
  void add(int64_t stage, const std::string& what, const Fault& fault, const Overrides& more = {}) {
    all.push_back({.name = text("ZeRO-", stage, ": ", what),
                   .plan = mutated_plan(stage, more),
                   .fired = std::make_shared<std::atomic<int64_t>>(0)});
    tests::set_fault(all.back(), fault);
  }
  std::vector<Mutant> all;
};

/// Every kind of wrong in the verb that a stage reduces or gathers with.
void spoil(Kit& kit, int64_t stage, Verb verb, const std::vector<int64_t>& calls) {
  const auto add = [&](const std::string& what, int64_t at, CommFault fault) {
    fault.verb = verb;
    fault.at = at;
    kit.add(stage, text(what, " ", to_string(verb), " ", at), fault);
  };
  for (const int64_t at : calls) {
    add("skips", at, {.action = Action::kDrop, .axis = "data"});
    add("on rank 1 alone skips", at, {.action = Action::kDrop, .axis = "data", .rank = 1});
    add("scales twice", at, {.action = Action::kScale, .axis = "data", .factor = 1.0 / 3});
    add("forgets to average in", at, {.action = Action::kScale, .axis = "data", .factor = 3});
  }
  // Blocks of one shape in a bucket each: the buffer of the block before is as long.
  CommFault stale{.action = Action::kStale, .axis = "data", .verb = verb, .at = 0};
  kit.add(stage, text("takes the stale buffer in every ", to_string(verb)), stale,
          {{"parallel.data.bucket", "25 MB"}});
  add("scales every", 0, {.action = Action::kScale, .axis = "data", .factor = 1.001});
  if (verb == Verb::kReduceScatter)
    add("keeps the largest in", 4, {.action = Action::kMaximum, .axis = "data"});
}

std::vector<Mutant> all_mutants() {
  Kit kit;
  for (int64_t stage = 1; stage <= kStages; ++stage) {
    spoil(kit, stage, Verb::kReduceScatter, {1, 5, 12});
    spoil(kit, stage, Verb::kAllGather, {1, 3, 5});
    for (const int64_t at : {1, 2}) {  // loss, norm
      kit.add(stage, text("skips the sum of scalars ", at),
              CommFault{.action = Action::kDrop, .axis = "data", .at = at});
    }
    kit.add(
        stage, "swaps the shards of ranks 0 and 1 of two replicas and a tensor group",
        PlaceFault{1, 2, ""},
        {{"parallel.data", "2"}, {"parallel.tensor.mode", "1d"}, {"parallel.tensor.size", "2"}});
  }
  return std::move(kit.all);
}

TEST(ZeroMutants, DecoratorsAloneChangeNothing) {
  for (int64_t stage = 1; stage <= kStages; ++stage) {
    Kit kit;
    kit.add(stage, "nothing", CommFault{.axis = "data", .at = int64_t{1} << 40});
    EXPECT_EQ(tests::fate_of(kit.all[0]), "equal") << kit.all[0].name;
    EXPECT_EQ(*kit.all[0].fired, 0);
  }
}

TEST(ZeroMutants, AreNoticed) {
  const std::vector<Mutant> mutants = all_mutants();
  size_t survivors = 0;
  for (const Mutant& m : mutants) {
    const std::string fate = tests::fate_of(m);
    EXPECT_GT(*m.fired, 0) << m.name << ": the fault never came true";
    if (fate != "equal") continue;
    ++survivors;
    std::cout << "survived  " << m.name << std::endl;
  }
  std::cout << mutants.size() - survivors << " of " << mutants.size() << " mutants noticed\n";
  EXPECT_LE(20 * survivors, mutants.size()) << "more than 5 % survive";
}

}  // namespace
}  // namespace kuafu
