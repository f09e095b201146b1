// SPDX-License-Identifier: Apache-2.0
//
// Traces with a wrong event. A fault of one world is noticed by the comparison of a real rank's
// trace with its simulated one; a fault of the recorder itself is in both alike, and noticed by what
// books and ledger say.

#include <algorithm>
#include <map>

#include "kuafu/engine/proof/miniature.h"
#include "tests/mutants/mutant.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"
#include "tests/support/traces.h"

namespace kuafu::tests {
namespace {

struct Pair {
  TracedSteps real, simulated;
};

/// Both traces of every rank of a plan, made once.
const std::vector<Pair>& traces_of(const Plan& plan) {
  static std::map<std::string, std::vector<Pair>> known;
  std::vector<Pair>& all = known[to_toml(plan)];
  if (!all.empty()) return all;
  all.resize(static_cast<size_t>(num_ranks(plan)));
  run_ranks(static_cast<int>(all.size()), [&](Communicator& world) {
    Pair& mine = all[static_cast<size_t>(world.rank())];
    TraceRecorder recorder;
    mine.real = traced_steps(plan, world, at::kCPU, recorder);
    mine.simulated = simulated_steps(plan, world.rank(), world.size(), mine.real.trace);
  });
  return all;
}

using Records = std::vector<TraceRecord>;
/// Whether a record is one that the fault changes, and the change.
using Finds = std::function<bool(const Trace& t, const TraceRecord& r)>;
using Changes = std::function<void(Trace& t, size_t at)>;

struct Spoil {
  Finds finds;
  Changes change;
};

/// Spoils the record in the middle of those that there are. False where there is none.
bool spoil(Trace& trace, const Spoil& fault) {
  std::vector<size_t> found;
  for (size_t i = 0; i < trace.records.size(); ++i) {
    if (fault.finds(trace, trace.records[i])) found.push_back(i);
  }
  if (found.empty()) return false;
  fault.change(trace, found[found.size() / 2]);
  return true;
}

enum class Where : uint8_t { kReal, kBoth };

Fate trial_of(const Mutant& m, const Plan& plan, const Spoil& fault, Where where) {
  const std::vector<Pair>& all = traces_of(plan);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Pair mine = all[rank];
    if (!spoil(mine.real.trace, fault)) continue;
    if (where == Where::kBoth) spoil(mine.simulated.trace, fault);
    ++*m.fired;
    const std::string words =
        first_difference(mine.real.trace, mine.simulated.trace) + not_as_booked(mine.real);
    if (words.empty()) return {Fate::Kind::kSurvived, "equal"};
    return {Fate::Kind::kComparison, words};
  }
  return {Fate::Kind::kOutOfReach, "no rank has such an event"};
}

Finds of(TraceKind kind) {
  return [kind](const Trace&, const TraceRecord& r) { return r.kind == kind; };
}
/// Ops that the formulas count.
bool is_counted(const Trace&, const TraceRecord& r) {
  return r.kind == TraceKind::kOp && r.payload[1] > 0;
}
Finds calls_with(std::function<bool(const TraceCall&)> what) {
  return [what](const Trace& t, const TraceRecord& r) {
    return r.kind == TraceKind::kCall && what(t.calls[static_cast<size_t>(r.payload[0])]);
  };
}

void lose(Trace& t, size_t at) { t.records.erase(t.records.begin() + static_cast<int64_t>(at)); }
void repeat(Trace& t, size_t at) {
  t.records.insert(t.records.begin() + static_cast<int64_t>(at), t.records[at]);
}
/// With the nearest event after it that is another.
void exchange(Trace& t, size_t at) {
  for (size_t i = at + 1; i < t.records.size(); ++i) {
    if (t.describe(t.records[i]) == t.describe(t.records[at])) continue;
    return std::swap(t.records[at], t.records[i]);
  }
}
Changes payload(size_t index, int64_t more) {
  return [=](Trace& t, size_t at) { t.records[at].payload[index] += more; };
}
/// Another entry of the table of names.
Changes name(const std::string& other) {
  return [other](Trace& t, size_t at) {
    t.records[at].name = static_cast<int32_t>(t.names.size());
    t.names.push_back(other);
  };
}
/// What the call's entry says, changed for this call alone.
Changes entry(std::function<void(TraceCall&)> change) {
  return [change](Trace& t, size_t at) {
    TraceCall call = t.calls[static_cast<size_t>(t.records[at].payload[0])];
    change(call);
    t.records[at].payload[0] = static_cast<int64_t>(t.calls.size());
    t.calls.push_back(call);
  };
}
Changes flag(uint8_t bit) {
  return [bit](Trace& t, size_t at) { t.records[at].flags ^= bit; };
}

class Traces {
 public:
  explicit Traces(Kit& kit) : kit_(kit) {}

  void add(const std::string& what, const Finds& finds, const Changes& change, Where where) {
    static const std::vector<Overrides> plans = {
        keys::both(keys::tensor("1d", "2"),
                   {{"parallel.data", "2"}, {"parallel.zero", "2"}, {"memory.recompute", "full"}}),
        {{"parallel.pipeline.size", "2"}, {"parallel.pipeline.schedule", "zero_bubble"}},
        keys::sequence("ring", "2"),
        {{"memory.policy", "host"}, {"memory.chunk_size", "4 KiB"}}};
    const auto is_of = [&](const char* word) { return what.find(word) != what.npos; };
    const size_t first = is_of("message")                    ? kPipeline
                         : is_of("copy") || is_of("arrival") ? kTiers
                                                             : turn_++ % kTiers;
    const Spoil fault{finds, change};
    kit_.mutants.push_back({.name = text(what, where == Where::kBoth ? ", in both worlds" : ""),
                            .overrides = plans[first],
                            .trial = [fault, where](const Mutant& m, const Plan& plan) {
                              return trial_of(m, plan, fault, where);
                            }});
  }

 private:
  Kit& kit_;
  static constexpr size_t kPipeline = 1, kTiers = 3;  // where there are messages, and copies
  size_t turn_ = 0;
};

void add_events(Traces& kit) {
  const std::pair<const char*, TraceKind> kinds[] = {
      {"an op", TraceKind::kOp},       {"an allocation", TraceKind::kAlloc},
      {"a release", TraceKind::kFree}, {"a call", TraceKind::kCall},
      {"a wait", TraceKind::kWait},    {"a phase", TraceKind::kPhaseBegin},
      {"a copy", TraceKind::kCopy},    {"an arrival", TraceKind::kArrival}};
  for (const auto& [what, kind] : kinds) {
    kit.add(text("loses ", what), of(kind), lose, Where::kReal);
    kit.add(text("has ", what, " twice"), of(kind), repeat, Where::kReal);
    kit.add(text("has ", what, " late"), of(kind), exchange, Where::kReal);
  }
  kit.add(
      "ends early", of(TraceKind::kOp), [](Trace& t, size_t at) { t.records.resize(at); },
      Where::kReal);
}

void add_values(Traces& kit) {
  const auto real = [&](const std::string& what, const Finds& finds, const Changes& change) {
    kit.add(what, finds, change, Where::kReal);
  };
  const auto any = [](const TraceCall&) { return true; };
  real("an op's FLOPs", is_counted, payload(1, 1));
  real("an op's bytes", of(TraceKind::kOp), payload(2, 8));
  real("an op's name", of(TraceKind::kOp), name("kuafu::other"));
  real("an op's shapes", of(TraceKind::kOp), [](Trace& t, size_t at) {
    t.records[at].payload[0] = static_cast<int64_t>(t.shapes.size());
    t.shapes.push_back("f32 1x1");
  });
  real("an op that is said to be made again", is_counted, flag(kRecompute));
  real("an allocation's bytes", of(TraceKind::kAlloc), payload(1, 8));
  real("an allocation's category", of(TraceKind::kAlloc), name("other"));
  real("an allocation's block", of(TraceKind::kAlloc), payload(0, 1));
  real("a release's bytes", of(TraceKind::kFree), payload(1, -8));
  real("a release's block", of(TraceKind::kFree), payload(0, 1));
  real("a release's category", of(TraceKind::kFree), name("other"));
  real("a call's verb", of(TraceKind::kCall), name("barrier"));
  real("a call's bytes", of(TraceKind::kCall), payload(1, 8));
  real("a call's number", of(TraceKind::kCall), payload(2, 1));
  real("a call's element type", calls_with(any),
       entry([](TraceCall& c) { c.dtype = c.dtype == DType::kF32 ? DType::kF64 : DType::kF32; }));
  real("a message's receiver", calls_with([](const TraceCall& c) { return c.to >= 0; }),
       entry([](TraceCall& c) { ++c.to; }));
  real("a message's sender", calls_with([](const TraceCall& c) { return c.from >= 0; }),
       entry([](TraceCall& c) { ++c.from; }));
  real("a message's tag", calls_with([](const TraceCall& c) { return c.to >= 0 || c.from >= 0; }),
       entry([](TraceCall& c) { ++c.tag; }));
  real("a sum's operation", calls_with([](const TraceCall& c) { return c.reduce != 0; }),
       entry([](TraceCall& c) { c.reduce = 0; }));
  real("a call's group", calls_with(any), [](Trace& t, size_t at) {
    TraceGroup other = t.groups[0];
    other.label += "'";
    t.groups.push_back(other);
    entry([&](TraceCall& c) { c.group = static_cast<int32_t>(t.groups.size()) - 1; })(t, at);
  });
  real("a call's queue", of(TraceKind::kCall), [](Trace& t, size_t at) {
    TraceQueue& queue = t.records[at].queue;
    queue = queue == TraceQueue::kCompute ? TraceQueue::kCommunication : TraceQueue::kCompute;
  });
  real("a wait's call", of(TraceKind::kWait), payload(2, 1));
  real("a wait of the host", of(TraceKind::kWait), flag(kHostSync));
  real("a copy's bytes", of(TraceKind::kCopy), payload(1, 8));
  real("a copy's number", of(TraceKind::kCopy), payload(0, 1));
  real("a copy's queue", of(TraceKind::kCopy), [](Trace& t, size_t at) {
    TraceQueue& queue = t.records[at].queue;
    queue = queue == TraceQueue::kToHost ? TraceQueue::kToDevice : TraceQueue::kToHost;
  });
  real("what a copy is of", of(TraceKind::kCopy), name("other"));
  real("an arrival's copy", of(TraceKind::kArrival), payload(0, 1));
  real("a phase's name", of(TraceKind::kPhaseBegin), name("other"));
}

/// Faults of the recorder that sums are there to notice.
void add_sums(Traces& kit) {
  const auto both = [&](const std::string& what, const Finds& finds, const Changes& change) {
    kit.add(what, finds, change, Where::kBoth);
  };
  both("loses an op", is_counted, lose);
  both("has an op twice", is_counted, repeat);
  both("an op's FLOPs", is_counted, payload(1, 1));
  both("an op that is said to be made again", is_counted, flag(kRecompute));
  both("loses an allocation", of(TraceKind::kAlloc), lose);
  both("has an allocation twice", of(TraceKind::kAlloc), repeat);
  both("an allocation's bytes", of(TraceKind::kAlloc), payload(1, 8));
  both("loses a release", of(TraceKind::kFree), lose);
  both("has a release twice", of(TraceKind::kFree), repeat);
  both("loses a call", of(TraceKind::kCall), lose);
  both("has a call twice", of(TraceKind::kCall), repeat);
  both("a call's verb", of(TraceKind::kCall), name("barrier"));
}

}  // namespace

Kit trace_kit() {
  Kit kit{.name = "trace"};
  Traces traces(kit);
  add_events(traces);
  add_values(traces);
  add_sums(traces);
  for (size_t i = 0; i < 3; ++i) {
    Mutant& none =
        kit.harmless.emplace_back(Mutant{.name = "nothing", .overrides = kit.mutants[i].overrides});
    none.trial = [](const Mutant& m, const Plan& plan) {
      const Spoil nothing{of(TraceKind::kOp), [](Trace&, size_t) {}};
      return trial_of(m, plan, nothing, Where::kReal);
    };
  }
  return kit;
}

}  // namespace kuafu::tests
