// SPDX-License-Identifier: Apache-2.0
//
// One recorder in every world: what a rank does on threads is, event by event, what it does
// simulated: calls, waits, ops with shapes and work, memory, phases. Times and the values of oracles
// are left out; the simulated rank is given the values that the real one read.

#include "kuafu/base/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kuafu/simulate/simulate.h"
#include "tests/support/ranks.h"
#include "tests/support/traced_plans.h"
#include "tests/support/traces.h"

namespace kuafu {
namespace {

using tests::Family;
using tests::TracedPlan;

void expect_traced_alike(const std::vector<TracedPlan>& plans) {
  for (const TracedPlan& traced : plans) {
    tests::run_ranks(static_cast<int>(num_ranks(traced.plan)), [&](Communicator& world) {
      tests::expect_traced_as_simulated(traced.plan, world, traced.name);
    });
  }
}

class Traces : public testing::TestWithParam<Family> {};

TEST_P(Traces, OfThreadsEqualThoseSimulated) {
  expect_traced_alike(tests::traced_family(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Schemes, Traces, testing::ValuesIn(tests::families()),
                         [](const auto& info) { return info.param.name; });

TEST(TracesOfPipelines, OfThreadsEqualThoseSimulated) {
  expect_traced_alike(tests::traced_pipelines());
}

// Each router, way of summing, and model with its norms, positions, optimizers and half precision.
TEST(TracesOfFeatures, OfThreadsEqualThoseSimulated) {
  expect_traced_alike(tests::traced_features());
}

// Policies that keep what fits copy more with little room than with much: else their traces would say
// nothing of them. (Under ZeRO-3 parts are so small here that what is gathered decides.)
TEST(TracesOfFeatures, HavePoliciesThatDropAndLoadAgain) {
  std::map<std::string, std::set<int64_t>> copied;  // bytes of a step
  for (const TracedPlan& traced : tests::traced_features()) {
    if (!traced.plan.memory.has_tiers() || traced.plan.parallel.zero > 0) continue;
    const Prediction p = simulate(traced.plan, builtin_registries());
    copied[traced.plan.memory.policy].insert(p.ranks.at(0).moves.step_to_device);
  }
  for (const char* policy : {"lru", "belady", "auto"}) {
    EXPECT_EQ(copied.at(policy).size(), 2u) << policy;
  }
}

TEST(TracesOfTheProduct, OfThreadsEqualThoseSimulatedInASample) {
  const auto plans = tests::traced_product(24, 1, 8);
  std::set<std::string> met;
  for (const TracedPlan& traced : plans) {
    const ParallelPlan& p = traced.plan.parallel;
    met.insert({"tensor " + p.tensor.mode, "sequence " + p.sequence.mode,
                "schedule " + p.pipeline.schedule, text("zero ", p.zero),
                text("recompute ", static_cast<int>(traced.plan.memory.recompute))});
  }
  EXPECT_EQ(met.size(), 5u + 5u + 5u + 4u + 3u) << "a value is in no plan";
  expect_traced_alike(plans);
}

class TracesOfTheWholeProduct : public testing::TestWithParam<uint64_t> {};
TEST_P(TracesOfTheWholeProduct, OfThreadsEqualThoseSimulated) {
  const auto plans = tests::traced_product(60, GetParam(), 16);
  for (const char* mode : {"2.5d", "3d"}) {
    EXPECT_TRUE(std::any_of(plans.begin(), plans.end(), [&](const TracedPlan& traced) {
      return traced.plan.parallel.tensor.mode == mode && traced.plan.parallel.tensor.size == 8;
    })) << mode;
  }
  expect_traced_alike(plans);
}
INSTANTIATE_TEST_SUITE_P(Seeds, TracesOfTheWholeProduct, testing::Range<uint64_t>(2, 6));

// All that is priced is in the ledger: placing blocks on stages looks ahead, and that is no call.
TEST(TracesOfPipelines, HaveTheCallsOfTheLedgerAlone) {
  const Plan plan = tests::small_plan({{"parallel.pipeline.size", "2"}, {"train.steps", "2"}});
  SimulatedWorld world(2);
  TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWork);
  const RankResult result = simulate_rank(plan, builtin_registries(), world, 0, &recorder);
  const Trace& trace = recorder.trace();
  std::map<std::string, std::map<std::string, int64_t>> calls, counted;
  int64_t flops = 0;
  for (const TraceRecord& r : trace.records) {
    if (r.kind == TraceKind::kOp) flops += r.payload[1];
    if (r.kind != TraceKind::kCall) continue;
    const TraceCall& call = trace.calls[static_cast<size_t>(r.payload[0])];
    const std::string& axis = trace.groups[static_cast<size_t>(call.group)].label;
    ++calls[axis][trace.names[static_cast<size_t>(r.name)]];
  }
  for (const auto& [axis, t] : result.traffic) counted[axis] = t.calls;
  EXPECT_EQ(calls, counted);
  EXPECT_EQ(flops, 2 * (result.flops + result.flops_recomputed));
}

// The comparison would notice.
TEST(Trace, DifferenceNamesTheFirstEventThatDiffers) {
  TraceRecorder a, b;
  for (TraceRecorder* t : {&a, &b}) {
    t->begin_phase("step");
    t->op({.name = t->name_of("kuafu::matmul"),
           .shape = t->shape_of("f32 4x8, f32 8x2"),
           .kind = OpKind::kMatmul});
    t->work(128, 4 * (32 + 16 + 8), kNoFlags);
    t->oracle("loss", t == &a ? 1 : 2);  // not compared
  }
  EXPECT_EQ(first_difference(a.trace(), b.trace()), "");
  EXPECT_EQ(a.trace().describe(a.trace().records[1]),
            "op kuafu::matmul (f32 4x8, f32 8x2), matmul, 128 FLOPs, 224 bytes");
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
