// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/activities.h"

#include <gtest/gtest.h>

#include <functional>

#include "kuafu/comm/simulated.h"

namespace kuafu {
namespace {

using Kind = Activity::Kind;

// 1 us latency and 1 GB/s, so a byte takes 1 ns; 1 GFLOP/s, so a FLOP takes 1 ns.
const ClusterPlan kCluster{.ranks_per_node = 8,
                           .intra_latency_us = 1,
                           .intra_bandwidth_gbs = 1,
                           .inter_latency_us = 1,
                           .inter_bandwidth_gbs = 1,
                           .compute_gflops = 1,
                           .memory_gbs = 1};

using Program = std::function<void(Communicator& world, TraceRecorder& trace)>;

std::vector<Trace> record(int ranks, const Program& program) {
  SimulatedWorld world(ranks);
  std::vector<Trace> traces;
  for (int r = 0; r < ranks; ++r) {
    TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWorkByPhase);
    const TraceScope traced(&recorder);
    program(*world.communicator(r), recorder);
    traces.push_back(recorder.take());
  }
  return traces;
}

/// All since the phase before is called that.
void end_phase(TraceRecorder& trace, const std::string& name) {
  trace.begin_phase(name);
  trace.end_phase(name);
}

Buffer bytes(int64_t count) { return {.count = count, .dtype = DType::kU8, .place = Place::kMeta}; }

std::vector<Activity> of_rank(const ActivityLog& log, int rank) {
  std::vector<Activity> out;
  for (const Activity& a : log.activities) {
    if (a.rank == rank) out.push_back(a);
  }
  return out;
}

void expect(const Activity& a, Kind kind, const std::string& what, const std::string& label,
            double start_us, double end_us) {
  EXPECT_EQ(a.kind, kind) << a.what;
  EXPECT_EQ(a.what, what);
  EXPECT_EQ(a.label, label);
  EXPECT_NEAR(a.start_s, start_us * 1e-6, 1e-15) << a.what << " " << a.label;
  EXPECT_NEAR(a.end_s, end_us * 1e-6, 1e-15) << a.what << " " << a.label;
}

/// Two stages, one micro-batch: 3 us forward, a message of 2000 bytes, 3 us on the other rank.
void two_stages(Communicator& c, TraceRecorder& trace) {
  const TracePhase step("step");
  Ledger ledger;
  c.meter(&ledger, "pipeline");
  if (c.rank() == 0) {
    {
      const TracePhase forward("forward 0F0");
      const TracePhase block("block 0");  // inside a phase: names nothing by itself
      trace.work(3000, 0, kNoFlags);
    }
    c.send(bytes(2000), 1, 0).wait();
    end_phase(trace, "send 0s0");
  } else {
    c.recv(bytes(2000), 0, 0).wait();
    end_phase(trace, "receive 1r0");
    trace.work(3000, 0, kNoFlags);
    end_phase(trace, "forward 1F0");
  }
}

TEST(Activities, ASimulatedPipelineWaitsThenReceivesThenWorks) {
  const ActivityLog log = activities_of(record(2, two_stages), kCluster, "two stages");
  EXPECT_NEAR(log.length_s, 9e-6, 1e-15);
  const auto first = of_rank(log, 0), second = of_rank(log, 1);
  ASSERT_EQ(first.size(), 3U);
  expect(first[0], Kind::kCompute, "forward", "0F0", 0, 3);
  expect(first[1], Kind::kCommunication, "send", "send pipeline", 3, 5);
  expect(first[2], Kind::kIdle, "idle", "", 5, 9);
  ASSERT_EQ(second.size(), 3U);
  expect(second[0], Kind::kIdle, "idle", "for recv pipeline", 0, 3);
  expect(second[1], Kind::kCommunication, "recv", "recv pipeline", 3, 6);  // and the latency
  expect(second[2], Kind::kCompute, "forward", "1F0", 6, 9);
  EXPECT_TRUE(problems(log).empty());
}

TEST(Activities, ACollectiveIsIdleUntilTheLastRankComes) {
  const auto traces = record(3, [](Communicator& c, TraceRecorder& trace) {
    const TracePhase step("step");
    trace.work(1000 * (1 + c.rank()), 0, kNoFlags);
    c.all_reduce(bytes(3000), ReduceOp::kSum).wait();
  });
  const ActivityLog log = activities_of(traces, kCluster, "sum");
  const auto row = of_rank(log, 0);
  ASSERT_EQ(row.size(), 3U);
  expect(row[0], Kind::kCompute, "update", "", 0, 1);
  expect(row[1], Kind::kIdle, "idle", "for all_reduce", 1, 3);
  expect(row[2], Kind::kCommunication, "all_reduce", "all_reduce", 3, 3 + 4 * (1 + 1));
}

TEST(Activities, HiddenCommunicationIsNotOnTheRow) {
  const auto traces = record(2, [](Communicator& c, TraceRecorder& trace) {
    const TracePhase step("step");
    Work work = c.all_reduce(bytes(2000), ReduceOp::kSum);
    trace.work(9000, 0, kNoFlags);
    work.wait();
  });
  const ActivityLog log = activities_of(traces, kCluster, "hidden");
  ASSERT_EQ(log.activities.size(), 2U);
  expect(log.activities[1], Kind::kCompute, "update", "", 0, 9);
}

TEST(Activities, ShowTheLastStepOnly) {
  const auto traces = record(2, [](Communicator& c, TraceRecorder& trace) {
    for (int step = 0; step < 3; ++step) two_stages(c, trace);
  });
  const ActivityLog log = activities_of(traces, kCluster, "steps");
  EXPECT_TRUE(problems(log, 1e-15).empty());
  // Rank 0 does not wait for rank 1: its third step begins at 10 us, rank 1 ends at 19 us.
  EXPECT_NEAR(log.length_s, 9e-6, 1e-15);
  for (const int rank : {0, 1}) {
    double seconds = 0;
    for (const Activity& a : of_rank(log, rank)) seconds += a.end_s - a.start_s;
    EXPECT_NEAR(seconds, log.length_s, 1e-15);
  }
}

TEST(Activities, WorldsWithoutAStepAreRefused) {
  const auto traces =
      record(1, [](Communicator&, TraceRecorder& trace) { trace.work(1, 1, kNoFlags); });
  EXPECT_THROW(activities_of(traces, kCluster, "none"), ConfigError);
}

TEST(Activities, AnObserverChangesNoTime) {
  const auto program = [](Communicator& c, TraceRecorder& trace) {
    for (int step = 0; step < 2; ++step) two_stages(c, trace);
  };
  const auto marked = record(2, program);
  int64_t busy = 0, exposed = 0;
  const PricedTimes seen = replay(marked, kCluster, [&](const ReplaySpan& span) {
    if (span.rank != 1) return;
    if (span.kind == ReplaySpan::Kind::kWork) busy += span.end_ps - span.start_ps;
    if (span.kind == ReplaySpan::Kind::kWait || span.kind == ReplaySpan::Kind::kTransfer) {
      exposed += span.end_ps - span.start_ps;
    }
  });
  EXPECT_EQ(seen.ranks, replay(marked, kCluster).ranks);
  EXPECT_EQ(busy, seen.ranks[1].busy_ps);
  EXPECT_EQ(exposed, seen.ranks[1].exposed_ps);
}

}  // namespace
}  // namespace kuafu
