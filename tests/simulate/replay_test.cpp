// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/replay.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kuafu/comm/simulated.h"

namespace kuafu {
namespace {

// 1 us latency and 1 GB/s, so a byte takes 1000 ps; 1 GFLOP/s, so a FLOP takes 1000 ps.
constexpr Link kLink{1'000'000, 1'000'000'000};
constexpr CostModel kPrices{kLink, {5'000'000, 500'000'000}, 8};
constexpr ComputeModel kCompute{1e9, 1e9};

using Program = std::function<void(Communicator& world, TraceRecorder& trace)>;

Trace record(SimulatedWorld& world, int rank, const Program& program) {
  TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWork);
  const TraceScope traced(&recorder);
  program(*world.communicator(rank), recorder);
  return recorder.take();
}

std::vector<Trace> record(SimulatedWorld& world, const Program& program) {
  std::vector<Trace> traces;
  for (int r = 0; r < world.size(); ++r) traces.push_back(record(world, r, program));
  return traces;
}

PricedTimes run(int ranks, const Program& program, const CostModel& prices = kPrices) {
  SimulatedWorld world(ranks);
  return replay(record(world, program), prices, kCompute);
}

Buffer floats(int64_t count) { return {.count = count, .place = Place::kMeta}; }

TEST(Replay, LocalWorkTakesTheLongerOfArithmeticAndMemory) {
  const PricedTimes t = run(2, [](Communicator&, TraceRecorder& trace) {
    trace.work(100, 30, kNoFlags);
    trace.work(100, 300, kNoFlags);  // merged: 200 FLOPs, 330 bytes
  });
  EXPECT_EQ(t.ranks[0], (RankTime{.finish_ps = 330'000, .busy_ps = 330'000, .exposed_ps = 0}));
  EXPECT_EQ(t.makespan_ps(), 330'000);
}

TEST(Replay, AllReduceTakesTheRingsTime) {
  for (const int n : {1, 2, 4, 7}) {
    const PricedTimes t = run(n, [](Communicator& c, TraceRecorder&) {
      c.all_reduce(floats(700), ReduceOp::kSum).wait();
    });
    const int64_t part = (2800 + n - 1) / n;
    EXPECT_EQ(t.makespan_ps(), 2 * (n - 1) * (1'000'000 + part * 1000)) << n << " ranks";
    EXPECT_EQ(t.ranks[0].exposed_ps, t.makespan_ps());
  }
}

TEST(Replay, CollectiveStartsWhenTheLastArrives) {
  const PricedTimes t = run(3, [](Communicator& c, TraceRecorder& trace) {
    trace.work(5000 * c.rank(), 0, kNoFlags);
    c.barrier();
  });
  EXPECT_EQ(t.makespan_ps(), 10'000'000 + 2 * 1'000'000);  // ceil(log2 3) latencies
  EXPECT_EQ(t.ranks[0].exposed_ps, 12'000'000);
  EXPECT_EQ(t.ranks[2].exposed_ps, 2'000'000);
}

// p stages pass m messages on, each after local work w: (m + p - 1) (w + transfer) but for the last
// stage, which sends nothing, and p - 1 latencies.
TEST(Replay, PipelineOfSendsFillsAndDrains) {
  constexpr int p = 4, m = 6;
  constexpr int64_t kWork = 3000, kBytes = 400;  // FLOPs
  const PricedTimes t = run(p, [](Communicator& c, TraceRecorder& trace) {
    for (int i = 0; i < m; ++i) {
      if (c.rank() > 0) c.recv(floats(kBytes / 4), c.rank() - 1, 0).wait();
      trace.work(kWork, 0, kNoFlags);
      if (c.rank() < p - 1) c.send(floats(kBytes / 4), c.rank() + 1, 0).wait();
    }
  });
  const int64_t work = kWork * 1000, transfer = kBytes * 1000;
  EXPECT_EQ(t.ranks[0].finish_ps, m * (work + transfer));
  EXPECT_EQ(t.makespan_ps(),
            (p - 1) * (work + transfer + 1'000'000) + (m - 1) * (work + transfer) + work);
}

TEST(Replay, WorkHidesAnIssuedAllReduce) {
  const int64_t ring = 2 * (1'000'000 + 2'000 * 1000);  // 2 ranks, 4000 bytes
  for (const int64_t flops : {0, 1000, 6000, 20000}) {
    const PricedTimes t = run(2, [flops](Communicator& c, TraceRecorder& trace) {
      Work work = c.all_reduce(floats(1000), ReduceOp::kSum);
      trace.work(flops, 0, kNoFlags);
      work.wait();
    });
    EXPECT_EQ(t.makespan_ps(), std::max(ring, flops * 1000));
    EXPECT_EQ(t.ranks[1].exposed_ps, std::max<int64_t>(0, ring - flops * 1000));
    EXPECT_EQ(t.ranks[1].busy_ps, flops * 1000);
  }
}

TEST(Replay, CollectivesOfARankShareItsPort) {
  const PricedTimes t = run(2, [](Communicator& c, TraceRecorder&) {
    Work first = c.all_reduce(floats(1000), ReduceOp::kSum);
    Work second = c.all_reduce(floats(1000), ReduceOp::kSum);
    second.wait();
    first.wait();
  });
  EXPECT_EQ(t.makespan_ps(), 2 * 2 * (1'000'000 + 2'000 * 1000));
}

TEST(Replay, GroupsThatCrossNodesPayTheSlowerLink) {
  const auto sum_of = [](int color_of_last) {
    return [color_of_last](Communicator& c, TraceRecorder&) {
      const auto group = c.split([=](int r) {
        return SplitKey{r == 0 || r == color_of_last ? 0 : -1, 0};
      });
      if (group != nullptr) group->all_gather(floats(200), floats(100)).wait();
    };
  };
  EXPECT_EQ(run(16, sum_of(7)).makespan_ps(), 1'000'000 + 400 * 1000);
  EXPECT_EQ(run(16, sum_of(8)).makespan_ps(), 5'000'000 + 400 * 2000);
}

TEST(Replay, ShiftsAroundARingOverlap) {
  const PricedTimes t = run(4, [](Communicator& c, TraceRecorder&) {
    const int n = c.size();
    c.send_recv(floats(100), (c.rank() + 1) % n, floats(100), (c.rank() + n - 1) % n, 0).wait();
  });
  for (const RankTime& rank : t.ranks) EXPECT_EQ(rank.finish_ps, 1'000'000 + 400 * 1000);
}

TEST(Replay, MessagesMatchByTag) {
  const PricedTimes t = run(2, [](Communicator& c, TraceRecorder&) {
    if (c.rank() == 0) {
      c.send(floats(250), 1, 1).wait();
      c.send(floats(25), 1, 2).wait();
    } else {
      c.recv(floats(25), 0, 2).wait();
      c.recv(floats(250), 0, 1).wait();
    }
  });
  EXPECT_EQ(t.ranks[1].finish_ps, 1'000'000 + 1100 * 1000);  // both bodies, one latency
}

/// A program with uneven work, subgroups, overlap and messages.
void mixed(Communicator& c, TraceRecorder& trace) {
  const auto pairs = c.split([](int r) { return SplitKey{r / 2, 0}; });
  const int n = c.size();
  for (int step = 0; step < 5; ++step) {
    Work sum = c.all_reduce(floats(5000), ReduceOp::kSum);
    trace.work(1000 * (1 + (c.rank() + step) % 3), 500, kNoFlags);
    pairs->broadcast(floats(300), 0).wait();
    c.send_recv(floats(40), (c.rank() + 1) % n, floats(40), (c.rank() + n - 1) % n, step).wait();
    sum.wait();
  }
}

TEST(Replay, MoreBandwidthIsNeverSlower) {
  int64_t last = INT64_MAX;
  for (int64_t factor = 1; factor <= 64; factor *= 2) {
    CostModel prices = kPrices;
    prices.intra_node.bytes_per_second *= factor;
    prices.inter_node.bytes_per_second *= factor;
    const int64_t now = run(16, mixed, prices).makespan_ps();
    EXPECT_LE(now, last) << "with " << factor << " times the bandwidth";
    last = now;
  }
}

TEST(Replay, LessLatencyIsNeverSlower) {
  CostModel none = kPrices;
  none.intra_node.latency_ps = none.inter_node.latency_ps = 0;
  EXPECT_LT(run(16, mixed, none).makespan_ps(), run(16, mixed).makespan_ps());
}

TEST(Replay, IsTheSameTwiceAndInEveryOrderOfRecording) {
  const PricedTimes forward = run(16, mixed);
  SimulatedWorld world(16);
  std::vector<Trace> traces(16);
  for (int r = 15; r >= 0; --r) traces[static_cast<size_t>(r)] = record(world, r, mixed);
  EXPECT_EQ(replay(traces, kPrices, kCompute).ranks, forward.ranks);
}

TEST(Replay, CircularWaitPrintsWhoWaitsForWhom) {
  try {
    run(2, [](Communicator& c, TraceRecorder&) {
      const auto other = c.split([](int) { return SplitKey{}; });
      (c.rank() == 0 ? c : *other).all_reduce(floats(1), ReduceOp::kSum).wait();
      (c.rank() == 1 ? c : *other).all_reduce(floats(1), ReduceOp::kSum).wait();
    });
    FAIL() << "no error";
  } catch (const RankLost& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("rank 0: waits for all_reduce, call 0 of group 0, which these ranks have "
                        "not made: 1"),
              std::string::npos)
        << what;
    EXPECT_NE(what.find("rank 1: waits for all_reduce, call 0 of group 1"), std::string::npos);
  }
}

TEST(Replay, DifferentVerbsAreRefused) {
  EXPECT_THROW(run(2,
                   [](Communicator& c, TraceRecorder&) {
                     if (c.rank() == 0) c.barrier();
                     if (c.rank() == 1) c.all_reduce(floats(1), ReduceOp::kSum).wait();
                   }),
               CollectiveMismatch);
}

TEST(Replay, TakesACluster) {
  const ClusterPlan cluster{.ranks_per_node = 2,
                            .intra_latency_us = 1,
                            .intra_bandwidth_gbs = 1,
                            .inter_latency_us = 5,
                            .inter_bandwidth_gbs = 0.5,
                            .compute_gflops = 1,
                            .memory_gbs = 1};
  SimulatedWorld world(4);
  const std::vector<Trace> traces = record(world, mixed);
  CostModel prices = kPrices;
  prices.ranks_per_node = 2;
  EXPECT_EQ(replay(traces, cluster).ranks, replay(traces, prices, kCompute).ranks);
  EXPECT_DOUBLE_EQ(replay(traces, cluster).makespan_seconds(),
                   static_cast<double>(replay(traces, cluster).makespan_ps()) * 1e-12);
}

// Host 0.5 GB/s, so a byte takes 2000 ps; the disk 0.25 GB/s, 4000 ps.
TEST(Replay, CopiesTakeTheirBytesOverTheRateOfTheirLink) {
  const auto priced = [](const std::function<void(TraceRecorder&)>& program) {
    TraceRecorder recorder(TraceRecorder::Clock::kNone, TraceRecorder::Keeps::kWork);
    program(recorder);
    return replay({recorder.take()}, kPrices, ComputeModel{1e9, 1e9, 0.5e9, 0.25e9}).ranks[0];
  };
  // One after the other in a queue, beside the computing: 100 bytes end at 200 ns, 50 more at 300.
  const RankTime one = priced([](TraceRecorder& trace) {
    const int64_t first = trace.copy("a", TraceQueue::kToDevice, 100);
    const int64_t second = trace.copy("b", TraceQueue::kToDevice, 50);
    trace.work(150, 0, kNoFlags);
    trace.arrival(first, 0, 0, 0);
    trace.work(40, 0, kNoFlags);
    trace.arrival(second, 0, 0, 0);
  });
  EXPECT_EQ(one, (RankTime{.finish_ps = 300'000, .busy_ps = 190'000, .stall_ps = 110'000}));
  // Both directions of the link to the host at once, those of the disk not.
  const auto both = [&](TraceQueue in, TraceQueue out) {
    return priced([&](TraceRecorder& trace) {
      const int64_t a = trace.copy("a", in, 100), b = trace.copy("b", out, 100);
      trace.arrival(a, 0, 0, 0);
      trace.arrival(b, 0, 0, 0);
    });
  };
  EXPECT_EQ(both(TraceQueue::kToDevice, TraceQueue::kToHost).finish_ps, 200'000);
  EXPECT_EQ(both(TraceQueue::kFromDisk, TraceQueue::kToDisk).finish_ps, 800'000);
  // What nobody waits for ends when it does.
  EXPECT_EQ(priced([](TraceRecorder& trace) { trace.copy("a", TraceQueue::kToHost, 100); }),
            RankTime{});
}

TEST(SimulatedWorld, RefusesRulesThatDifferBetweenRanks) {
  SimulatedWorld world(2);
  const auto rule = [](int color) { return [color](int) { return SplitKey{color, 0}; }; };
  world.communicator(0)->split(rule(0));
  EXPECT_THROW(world.communicator(1)->split(rule(1)), ConfigError);
}

TEST(SimulatedWorld, KeepsGroupsOnceForThousandsOfRanks) {
  constexpr int n = 4096;
  SimulatedWorld world(n);
  const std::vector<Trace> traces = record(world, [](Communicator& c, TraceRecorder&) {
    const auto rows = c.split([](int i) { return SplitKey{i / 64, i % 64}; });
    const auto columns = c.split([](int i) { return SplitKey{i % 64, i / 64}; });
    rows->all_reduce(floats(1000), ReduceOp::kSum).wait();
    columns->all_gather(floats(64000), floats(1000)).wait();
  });
  EXPECT_EQ(world.groups().size(), 1U + 64 + 64);
  EXPECT_EQ(traces[n - 1].records.size(), 4U);
  EXPECT_GT(replay(traces, kPrices, kCompute).makespan_ps(), 0);
}

// Groups of ranks on threads have no number: nobody could tell which calls meet.
TEST(Replay, TracesOfOtherWorldsAreRefused) {
  TraceRecorder recorder;
  const std::string label = "data";
  const std::vector<int> members = {0};
  recorder.call({.verb = "barrier", .key = &label, .label = &label, .members = &members});
  EXPECT_THROW(replay({recorder.take()}, kPrices, kCompute), ConfigError);
}

}  // namespace
}  // namespace kuafu
