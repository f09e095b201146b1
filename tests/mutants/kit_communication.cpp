// SPDX-License-Identifier: Apache-2.0
//
// Spoilt calls: of every verb on every axis of a list of plans a few, drawn by a seed, early, in
// the middle or late in the first step.

#include <algorithm>
#include <random>

#include "tests/mutants/communication_places.h"
#include "tests/support/plans.h"

namespace kuafu::tests {
namespace {

using Action = CommFault::Action;

struct Wrong {
  const char* what;
  CommFault fault;
};

/// What there is to do to a call of a verb.
std::vector<Wrong> wrongs(Verb verb, bool has_place) {
  std::vector<Wrong> all = {{"dropped", {.action = Action::kDrop}},
                            {"halved", {.action = Action::kScale, .factor = 0.5}},
                            {"negated", {.action = Action::kScale, .factor = -1}},
                            {"times 1.001", {.action = Action::kScale, .factor = 1.001}}};
  if (has_place) all.push_back({"dropped on one rank", {.action = Action::kDrop, .rank = 0}});
  if (verb == Verb::kReduceScatter || verb == Verb::kAllReduce || verb == Verb::kReduce) {
    all.push_back({"the largest", {.action = Action::kMaximum}});
  }
  // No two receives of a ring are as long.
  if (verb != Verb::kRecv) all.push_back({"stale in", {.action = Action::kStale, .at = 0}});
  return all;
}

constexpr double kSlight = 1.0001;

void add_drawn(Kit& kit, const Place& place, Verb verb, std::mt19937_64& random) {
  constexpr size_t kDraws = 4;
  std::vector<Wrong> all = wrongs(verb, place.place != nullptr);
  for (size_t i = 0; i < std::min(kDraws, all.size()); ++i) {
    std::swap(all[i], all[i + random() % (all.size() - i)]);
    CommFault fault = all[i].fault;
    fault.axis = place.axis;
    fault.verb = verb;
    fault.depth = place.depth;
    const size_t when = random() % std::size(kWhen);
    const std::string which = fault.at == 0 ? "every" : kWhen[when];
    kit.mutants.push_back({.name = text(place.name, ": ", all[i].what, " ", which, " ",
                                        to_string(verb), " on ", place.axis),
                           .overrides = place.overrides,
                           .aim = aimed(place, fault, when)});
  }
}

/// Off by one in ten thousand, the first, the middle and the last call: what f32 has to tell. The
/// largest logit of a row, which a softmax takes off and puts back, is no sum.
void add_slight(Kit& kit, const Place& place, Verb verb) {
  const CommFault fault{.action = Action::kScale,
                        .axis = place.axis,
                        .verb = verb,
                        .factor = kSlight,
                        .depth = place.depth,
                        .of_sums = true};
  for (size_t when = 0; when < std::size(kWhen); ++when) {
    kit.mutants.push_back({.name = text(place.name, ": times 1.0001 ", kWhen[when], " ",
                                        to_string(verb), " on ", place.axis),
                           .overrides = place.overrides,
                           .dtype = DType::kF32,
                           .aim = aimed(place, fault, when)});
  }
}

void add_slight_pipeline(Kit& kit, const char* schedule, const char* zero) {
  using enum CommFault::Action;
  const auto add = [&](const std::string& what, CommFault fault) {
    fault.axis = "pipeline";
    fault.action = kScale;
    fault.factor = kSlight;
    Mutant& m = kit.add(text(schedule, " under ZeRO-", zero, ": times 1.0001, ", what),
                        pipeline(schedule, zero), fault);
    m.dtype = DType::kF32;
  };
  add("message 1 to rank 0", {.verb = Verb::kRecv, .rank = 0});
  add("message 2 to rank 1", {.verb = Verb::kRecv, .at = 2, .rank = 1});
  add("the loss", {});
  add("the norm", {.at = 2});
  if (std::string(schedule) != "zbv") add("the tied table", {.depth = 1});
}

/// Messages between stages, and what stages sum: counted by hand, since groups split off one have
/// its name.
void add_pipeline(Kit& kit, const char* schedule, const char* zero) {
  const Overrides overrides = pipeline(schedule, zero);
  const auto add = [&](const std::string& what, CommFault fault) {
    fault.axis = "pipeline";
    kit.add(text(schedule, " under ZeRO-", zero, ": ", what), overrides, fault);
  };
  using enum CommFault::Action;
  add("rank 0 uses nothing for message 1", {.action = kDrop, .verb = Verb::kRecv, .rank = 0});
  add("rank 1 uses nothing for message 2",
      {.action = kDrop, .verb = Verb::kRecv, .at = 2, .rank = 1});
  add("message 2 times 1.001", {.action = kScale, .verb = Verb::kRecv, .at = 2, .factor = 1.001});
  add("rank 1 has the message before for message 2",
      {.action = kStale, .verb = Verb::kRecv, .at = 2, .rank = 1});
  add("the loss stays on the last stage", {.action = kDrop});
  add("each stage clips by its own norm", {.action = kDrop, .at = 2});
  // Where the first and the last stage share a rank, nothing is tied across ranks.
  if (std::string(schedule) == "zbv") return;
  add("the tied table is not summed", {.action = kDrop, .depth = 1});
  add("the last stage keeps its own sum of the tied table",
      {.action = kDrop, .rank = 1, .depth = 1});
  add("the tied table is averaged", {.action = kScale, .at = 0, .factor = 0.5, .depth = 1});
}

}  // namespace

Kit communication_kit(uint64_t seed) {
  Kit kit{.name = "communication"};
  std::mt19937_64 random(seed);
  for (const Place& place : places()) {
    for (const Verb verb : place.verbs) add_drawn(kit, place, verb, random);
    Mutant& none = kit.harmless.emplace_back(
        Mutant{.name = place.name + ": nothing", .overrides = place.overrides});
    set_fault(none, CommFault{.axis = place.axis,
                              .verb = place.verbs[0],
                              .at = int64_t{1} << 40,
                              .depth = place.depth});
  }
  const char* const zero[] = {"0", "1", "2", "3", "0"};
  const char* const schedules[] = {"gpipe", "1f1b", "interleaved", "zero_bubble", "zbv"};
  for (size_t i = 0; i < std::size(schedules); ++i) add_pipeline(kit, schedules[i], zero[i]);
  for (const Place& place : places()) {
    for (const Verb verb : place.verbs) add_slight(kit, place, verb);
  }
  for (size_t i = 0; i < std::size(schedules); ++i) {
    add_slight_pipeline(kit, schedules[i], zero[i]);
  }
  return kit;
}

}  // namespace kuafu::tests
