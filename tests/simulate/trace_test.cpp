// SPDX-License-Identifier: Apache-2.0
//
// One recorder in every world: what a rank does on threads is, event by event, what it does
// simulated: calls, waits, ops with shapes and work, memory, phases. Times and the values of oracles
// are left out; the simulated rank is given the values that the real one read.

#include "kuafu/base/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "kuafu/comm/trace.h"
#include "kuafu/comm/worlds.h"
#include "kuafu/meter/op_trace.h"
#include "tests/support/pipelines.h"
#include "tests/support/plans.h"
#include "tests/support/ranks.h"

namespace kuafu {
namespace {

using tests::Family;

constexpr int64_t kSteps = 2;

/// What a trace says of memory, work and calls is what the books and the ledger say.
void expect_as_booked(const Trace& trace, int64_t live, const RankBook& book,
                      const Ledger& ledger) {
  int64_t peak = live, flops = 0, again = 0;
  std::map<std::pair<std::string, std::string>, int64_t> calls;  // by axis and verb
  for (const TraceRecord& r : trace.records) {
    const std::string& name = trace.names[static_cast<size_t>(r.name)];
    if (r.kind == TraceKind::kAlloc) live += r.payload[1];
    if (r.kind == TraceKind::kFree) live -= r.payload[1];
    peak = std::max(peak, live);
    if (r.kind == TraceKind::kOp) ((r.flags & kRecompute) != 0 ? again : flops) += r.payload[1];
    if (r.kind != TraceKind::kCall) continue;
    const TraceCall& call = trace.calls[static_cast<size_t>(r.payload[0])];
    ++calls[{trace.groups[static_cast<size_t>(call.group)].label, name}];
  }
  EXPECT_EQ(live, book.live());
  EXPECT_EQ(peak, book.peak());
  EXPECT_EQ(flops, book.flops());
  EXPECT_EQ(again, book.flops_recomputed());
  for (const auto& [axis, entry] : ledger.axes()) {
    for (int v = 0; v < kNumVerbs; ++v) {
      const std::string verb(to_string(static_cast<Verb>(v)));
      const int64_t counted = entry.calls[static_cast<size_t>(v)];
      if (counted > 0) {
        EXPECT_EQ((calls[{axis, verb}]), counted) << axis << " " << verb;
      }
      calls.erase({axis, verb});
    }
  }
  EXPECT_TRUE(calls.empty()) << calls.size() << " kinds of calls are in no ledger, as "
                             << calls.begin()->first.first << " " << calls.begin()->first.second;
}

/// A rank's steps.
Trace trace_of(const Plan& plan, Communicator& world, at::Device device, TraceRecorder& recorder) {
  const Registries registries = builtin_registries();
  const auto data = tests::data_of(plan);
  RankBook book(world.rank());
  const BookScope booked(&book);
  Ledger ledger;
  Engine engine(plan, registries, world, *data, {.device = device, .ledger = &ledger});
  book.restart();
  ledger.clear();
  const int64_t live = book.live();
  const OpTraceScope traced(recorder);
  for (int64_t step = 0; step < kSteps; ++step) engine.step();
  Trace trace = recorder.take();
  expect_as_booked(trace, live, book, ledger);
  return trace;
}

void expect_traced_alike(const Plan& plan, const std::string& name) {
  const auto ranks = static_cast<int>(num_ranks(plan));
  std::vector<Trace> real(static_cast<size_t>(ranks));
  tests::run_ranks(ranks, [&](Communicator& world) {
    TraceRecorder recorder;
    real[static_cast<size_t>(world.rank())] = trace_of(plan, world, at::kCPU, recorder);
  });
  SimulatedWorld world(ranks);
  for (int r = 0; r < ranks; ++r) {
    const auto me = world.communicator(r);
    TraceRecorder recorder(TraceRecorder::Clock::kNone);
    recorder.give_oracles(real[static_cast<size_t>(r)]);
    const Trace simulated = trace_of(plan, *me, at::kMeta, recorder);
    const Trace& mine = real[static_cast<size_t>(r)];
    EXPECT_GT(mine.records.size(), 100u);
    EXPECT_EQ(first_difference(mine, simulated), "") << name << ", rank " << r;
  }
}

class Traces : public testing::TestWithParam<Family> {};

TEST_P(Traces, OfThreadsEqualThoseSimulated) { expect_traced_alike(plan_of(GetParam()), "plain"); }

TEST_P(Traces, OfThreadsEqualThoseSimulatedUnderRecomputation) {
  for (const char* policy : {"selective", "full"}) {
    expect_traced_alike(plan_of(GetParam(), {{"memory.recompute", policy}}), policy);
  }
}

TEST_P(Traces, OfThreadsEqualThoseSimulatedUnderZero) {
  if (GetParam().name.find("data") == std::string::npos) GTEST_SKIP() << "no replicas";
  for (const char* stage : {"1", "2", "3"}) {
    expect_traced_alike(plan_of(GetParam(), {{"parallel.zero", stage}}), stage);
  }
}

TEST_P(Traces, OfThreadsEqualThoseSimulatedInEveryDtype) {
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    expect_traced_alike(plan_of(GetParam(), {{"model.dtype", dtype},
                                             {"model.dropout", "0.1"},
                                             {"train.batch", "24"},
                                             {"train.micro_batch", "4"}}),
                        dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, Traces, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

TEST(TracesOfPipelines, OfThreadsEqualThoseSimulated) {
  for (const tests::Pipe& pipe : tests::pipes()) {
    for (const char* zero : {"0", "1", "2", "3"}) {
      const bool has_replicas = std::string(zero) != "0";
      if (has_replicas && pipe.ranks > 2) continue;
      const Overrides overrides = {{"parallel.pipeline.size", text(pipe.ranks)},
                                   {"parallel.pipeline.schedule", pipe.schedule},
                                   {"parallel.pipeline.chunks", text(pipe.chunks)},
                                   {"model.layers", "6"},
                                   {"parallel.data", has_replicas ? "2" : "1"},
                                   {"parallel.zero", zero},
                                   {"memory.recompute", has_replicas ? "full" : "none"},
                                   {"train.micro_batch", "1"}};
      std::ostringstream name;
      name << pipe << ", zero " << zero;
      expect_traced_alike(tests::small_plan(overrides), name.str());
    }
  }
}

TEST(TracesOfExperts, OfThreadsEqualThoseSimulated) {
  for (const char* router : {"top1", "top2", "topk", "expert_choice"}) {
    expect_traced_alike(
        tests::small_plan(tests::keys::both(tests::keys::experts("2"),
                                            {{"parallel.data", "2"}, {"model.router", router}})),
        router);
  }
}

TEST(TracesOfReplicas, OfThreadsEqualThoseSimulated) {
  for (const char* mode : {"auto", "ring", "tree", "hierarchical", "parameter_server"}) {
    expect_traced_alike(tests::small_plan({{"parallel.data", "4"},
                                           {"parallel.data.mode", mode},
                                           {"cluster.ranks_per_node", "2"},
                                           {"parallel.data.overlap", "false"}}),
                        mode);
  }
}

// The comparison would notice.
TEST(Trace, DifferenceNamesTheFirstEventThatDiffers) {
  TraceRecorder a, b;
  for (TraceRecorder* t : {&a, &b}) {
    t->begin_phase("step");
    t->op("kuafu::matmul", "f32 4x8, f32 8x2", kNoFlags, 0);
    t->work(128, 4 * (32 + 16 + 8), kNoFlags);
    t->oracle("loss", t == &a ? 1 : 2);  // not compared
  }
  EXPECT_EQ(first_difference(a.trace(), b.trace()), "");
  EXPECT_EQ(a.trace().describe(a.trace().records[1]),
            "op kuafu::matmul (f32 4x8, f32 8x2), 128 FLOPs, 224 bytes");
  b.alloc("activation", 64);
  EXPECT_EQ(first_difference(a.trace(), b.trace()),
            "event 3: nothing; other: alloc activation block 1, 64 bytes");
  a.alloc("activation", 32);
  EXPECT_EQ(
      first_difference(a.trace(), b.trace()),
      "event 3: alloc activation block 1, 32 bytes; other: alloc activation block 1, 64 bytes");
  b.work(1, 0, kNoFlags);  // of the matmul
  EXPECT_NE(first_difference(a.trace(), b.trace()).find("129 FLOPs"), std::string::npos);
}

TEST(Trace, OracleGivenMustBeTheOneRead) {
  TraceRecorder real, simulated;
  real.oracle("loss", 2.5);
  simulated.give_oracles(real.trace());
  EXPECT_THROW(simulated.oracle("gradient norm", 1), ConfigError);
  EXPECT_EQ(simulated.oracle("loss", 1), 2.5);
  EXPECT_EQ(simulated.oracle("loss", 1), 1) << "none is left";
}

}  // namespace
}  // namespace kuafu
