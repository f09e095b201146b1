// SPDX-License-Identifier: Apache-2.0
#include "kuafu/simulate/replay.h"

#include <gtest/gtest.h>

#include "kuafu/base/errors.h"

namespace kuafu {
namespace {

// Prices that make the arithmetic readable: 1 us a message, 1 byte a nanosecond, 1 FLOP a
// nanosecond.
constexpr int64_t kMicro = 1'000'000;  // picoseconds
const CostModel kLinks{{1 * kMicro, 1'000'000'000}, {10 * kMicro, 100'000'000}, 8};
const ComputeModel kCompute{1e9, 1e9};

Buffer bytes(int64_t count) { return {nullptr, count, DType::kU8, Place::kMeta}; }

TEST(Replay, RingAllReduceTakesItsClosedForm) {
  constexpr int n = 4;
  SimulatedWorld world(n);
  for (int r = 0; r < n; ++r) world.communicator(r)->all_reduce(bytes(4000), ReduceOp::kSum).wait();
  // 2 (n-1) (alpha + B/n / beta) = 6 (1 us + 1 us)
  EXPECT_EQ(replay(world, kLinks, kCompute).makespan_ps(), 12 * kMicro);
}

TEST(Replay, ComputationHidesAnIssuedCollective) {
  SimulatedWorld world(2);
  for (int r = 0; r < 2; ++r) {
    const auto me = world.communicator(r);
    Work work = me->all_reduce(bytes(2000), ReduceOp::kSum);  // 2 (1 us + 1 us)
    world.compute(r, 3000, 0);                                // 3 us
    work.wait();
  }
  const Timeline t = replay(world, kLinks, kCompute);
  EXPECT_EQ(t.makespan_ps(), 4 * kMicro);
  EXPECT_EQ(t.ranks[0].compute_ps, 3 * kMicro);
  EXPECT_EQ(t.ranks[0].exposed_ps, 1 * kMicro);
}

TEST(Replay, ACollectiveStartsWithItsLastRank) {
  SimulatedWorld world(2);
  world.compute(1, 5000, 0);
  for (int r = 0; r < 2; ++r) world.communicator(r)->all_reduce(bytes(2000), ReduceOp::kSum).wait();
  const Timeline t = replay(world, kLinks, kCompute);
  EXPECT_EQ(t.makespan_ps(), 9 * kMicro);
  EXPECT_EQ(t.ranks[0].exposed_ps, 9 * kMicro);
}

TEST(Replay, APipelineOfSendsAddsUp) {
  constexpr int n = 4;
  SimulatedWorld world(n);
  for (int r = 0; r < n; ++r) {
    const auto me = world.communicator(r);
    if (r > 0) me->recv(bytes(1000), r - 1, 0).wait();
    world.compute(r, 1000, 0);
    if (r + 1 < n) me->send(bytes(1000), r + 1, 0).wait();
  }
  // n computations of 1 us and n - 1 messages of 1 + 1 us
  EXPECT_EQ(replay(world, kLinks, kCompute).makespan_ps(), (n + 2 * (n - 1)) * kMicro);
}

TEST(Replay, AGroupAcrossNodesPaysTheSlowerLink) {
  const CostModel two_nodes{kLinks.intra_node, kLinks.inter_node, 1};
  SimulatedWorld world(2);
  for (int r = 0; r < 2; ++r) world.communicator(r)->all_reduce(bytes(2000), ReduceOp::kSum).wait();
  EXPECT_EQ(replay(world, two_nodes, kCompute).makespan_ps(), 2 * (10 + 10) * kMicro);
}

TEST(Replay, FasterLinksNeverSlowARun) {
  for (int64_t speed : {1, 2, 4, 8}) {
    SimulatedWorld world(3);
    for (int r = 0; r < 3; ++r) {
      const auto me = world.communicator(r);
      Work first = me->all_reduce(bytes(3000), ReduceOp::kSum);
      world.compute(r, 1000 * (r + 1), 0);
      first.wait();
      me->broadcast(bytes(500), 1).wait();
    }
    CostModel faster = kLinks, twice = kLinks;
    faster.intra_node.bytes_per_second *= speed;
    twice.intra_node.bytes_per_second *= 2 * speed;
    EXPECT_LE(replay(world, twice, kCompute).makespan_ps(),
              replay(world, faster, kCompute).makespan_ps());
  }
}

TEST(Replay, DeadlockNamesWhoWaitsWhere) {
  SimulatedWorld world(2);
  for (int r = 0; r < 2; ++r) {
    const auto me = world.communicator(r);
    me->recv(bytes(8), 1 - r, 0).wait();
    me->send(bytes(8), 1 - r, 0).wait();
  }
  try {
    replay(world, kLinks, kCompute);
    FAIL() << "a deadlock was not found";
  } catch (const RankLost& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1 waits in recv"), std::string::npos) << e.what();
  }
}

TEST(Replay, DifferentCallsOfOneGroupAreAnError) {
  SimulatedWorld world(2);
  world.communicator(0)->all_reduce(bytes(8), ReduceOp::kSum).wait();
  world.communicator(1)->broadcast(bytes(8), 0).wait();
  EXPECT_THROW(replay(world, kLinks, kCompute), CollectiveMismatch);
}

}  // namespace
}  // namespace kuafu
