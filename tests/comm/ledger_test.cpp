// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/ledger.h"

#include <gtest/gtest.h>

#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "tests/comm/every_verb.h"

namespace kuafu {
namespace {

using conformance::every_verb;
using conformance::Substance;

TEST(Ledger, OfSimulatedRanksEqualsThatOfThreads) {
  for (const int n : {1, 2, 3, 5, 8}) {
    std::vector<Ledger> real(static_cast<size_t>(n)), simulated(static_cast<size_t>(n));
    run_on_threads(n, [&](Communicator& world) {
      every_verb(world, real[static_cast<size_t>(world.rank())], Substance::kData);
    });
    SimulatedWorld world(n);
    for (int r = n - 1; r >= 0; --r) {
      every_verb(*world.communicator(r), simulated[static_cast<size_t>(r)], Substance::kNone);
    }
    for (int r = 0; r < n; ++r) {
      EXPECT_EQ(real[static_cast<size_t>(r)].axes(), simulated[static_cast<size_t>(r)].axes())
          << "rank " << r << " of " << n;
    }
  }
}

TEST(Ledger, CountsWhatIsSentAsReceived) {
  for (const int n : {2, 3, 5, 8}) {
    std::vector<Ledger> ledgers(static_cast<size_t>(n));
    run_on_threads(n, [&](Communicator& world) {
      every_verb(world, ledgers[static_cast<size_t>(world.rank())], Substance::kData);
    });
    int64_t sent = 0, received = 0;
    for (Ledger& ledger : ledgers) {
      sent += ledger.axis("world").bytes_sent;
      received += ledger.axis("world").bytes_received;
    }
    EXPECT_EQ(sent, received);
    EXPECT_GT(sent, 0);
  }
}

// The closed forms of the accounting convention, on a count that n divides.
TEST(Ledger, FollowsTheConvention) {
  constexpr int n = 4;
  constexpr int64_t kBytes = 400;  // 100 f32, 25 a rank
  run_on_threads(n, [&](Communicator& world) {
    std::vector<float> whole(100), part(25);
    const Buffer b{.data = whole.data(), .count = 100}, p{.data = part.data(), .count = 25};
    const auto traffic_of = [&](const auto& call) {
      Ledger ledger;
      world.meter(&ledger, "axis");
      call();
      world.meter(nullptr, "");
      return ledger.axis("axis");
    };
    const int r = world.rank(), next = (r + 1) % n, prev = (r + n - 1) % n;
    const RankSet ring = {next, prev};

    auto e = traffic_of([&] { world.all_reduce(b, ReduceOp::kSum).wait(); });
    EXPECT_EQ(e.bytes_received, 2 * (n - 1) * kBytes / n);
    EXPECT_EQ(e.bytes_sent, 2 * (n - 1) * kBytes / n);
    EXPECT_EQ(e.messages, 2 * (n - 1));
    EXPECT_EQ(e.wire_peers, ring);
    EXPECT_EQ(e.peers.size(), n - 1U);
    EXPECT_EQ(e.calls[static_cast<size_t>(Verb::kAllReduce)], 1);
    EXPECT_EQ(e.received[static_cast<size_t>(Verb::kAllReduce)], e.bytes_received);

    e = traffic_of([&] { world.all_gather(b, p).wait(); });
    EXPECT_EQ(e.bytes_received, (n - 1) * kBytes / n);
    EXPECT_EQ(e.messages, n - 1);
    e = traffic_of([&] { world.reduce_scatter(p, b, ReduceOp::kSum).wait(); });
    EXPECT_EQ(e.bytes_received, (n - 1) * kBytes / n);
    EXPECT_EQ(e.messages, n - 1);
    EXPECT_EQ(e.wire_peers, ring);

    e = traffic_of([&] { world.broadcast(b, 1).wait(); });
    EXPECT_EQ(e.bytes_received, r == 1 ? 0 : kBytes);
    EXPECT_EQ(e.bytes_sent, r == 0 ? 0 : kBytes);  // the chain is 1, 2, 3, 0
    EXPECT_EQ(e.wire_peers, r == 1 ? RankSet{2} : r == 0 ? RankSet{3} : ring);
    e = traffic_of([&] { world.reduce(b, 1, ReduceOp::kSum).wait(); });
    EXPECT_EQ(e.bytes_received, r == 2 ? 0 : kBytes);  // the chain is 2, 3, 0, 1
    EXPECT_EQ(e.bytes_sent, r == 1 ? 0 : kBytes);

    std::vector<float> other(100);
    e = traffic_of([&] { world.all_to_all({.data = other.data(), .count = 100}, b).wait(); });
    EXPECT_EQ(e.bytes_received, (n - 1) * kBytes / n);
    EXPECT_EQ(e.messages, n - 1);
    EXPECT_EQ(e.wire_peers.size(), n - 1U);

    e = traffic_of([&] { world.barrier(); });
    EXPECT_EQ(e.bytes_received + e.bytes_sent + e.messages, 0);
    EXPECT_EQ(e.calls[static_cast<size_t>(Verb::kBarrier)], 1);
  });
}

// Sent as received, and never fewer messages than one for each call that moves something; that the
// same counts stand on a wire is asserted where there is one (mpi_test.cpp).
TEST(Ledger, OfRanksSimulatedForMpiCountsMessagesOfItsAlgorithms) {
  constexpr int n = 4;
  std::vector<Ledger> ledgers(n);
  SimulatedWorld world(n, Transport::kMpi);
  for (int r = 0; r < n; ++r) {
    const auto me = world.communicator(r);
    me->meter(&ledgers[static_cast<size_t>(r)], "axis");
    me->all_reduce({.count = 64}, ReduceOp::kSum).wait();       // recursive doubling
    me->all_gather({.count = 40}, {.count = 10}).wait();        // direct
    me->all_reduce({.count = 1 << 20}, ReduceOp::kSum).wait();  // the ring, a lane
    me->send_recv({.count = 5}, (r + 1) % n, {.count = 5}, (r + 3) % n, 0).wait();
    me->barrier();
  }
  for (int r = 0; r < n; ++r) {
    const AxisLedger& e = ledgers[static_cast<size_t>(r)].axis("axis");
    EXPECT_EQ(e.counting, Counting::kWire);
    EXPECT_EQ(e.messages, 2 + 3 + 2 * 3 + 1);
    EXPECT_EQ(e.bytes_sent, 2 * 256 + 3 * 40 + 2 * 3 * (1 << 20) + 20);
    EXPECT_EQ(e.bytes_received, e.bytes_sent);
    EXPECT_EQ(e.received[static_cast<size_t>(Verb::kAllReduce)], 2 * 256 + 6 * (1 << 20));
    EXPECT_EQ(e.wire_peers.size(), n - 1U);
    EXPECT_EQ(e.calls[static_cast<size_t>(Verb::kBarrier)], 1);
  }
}

TEST(Ledger, OfOneRankHasCallsOnly) {
  Ledger ledger;
  const auto self = make_self();
  every_verb(*self, ledger, Substance::kData);
  const AxisLedger& e = ledger.axis("world");
  EXPECT_EQ(e.calls[static_cast<size_t>(Verb::kAllReduce)], 8);
  EXPECT_EQ(e.bytes_sent + e.bytes_received + e.messages, 0);
  EXPECT_TRUE(e.peers.empty() && e.wire_peers.empty());
}

TEST(Ledger, PausesAndStartsAgain) {
  std::vector<Ledger> ledgers(2);
  run_on_threads(2, [&](Communicator& world) {
    Ledger& ledger = ledgers[static_cast<size_t>(world.rank())];
    world.meter(&ledger, "axis");
    float x = 1;
    world.all_reduce({.data = &x, .count = 1}, ReduceOp::kSum).wait();
    ledger.set_counting(false);
    world.all_reduce({.data = &x, .count = 1}, ReduceOp::kSum).wait();
    ledger.set_counting(true);
    EXPECT_EQ(ledger.axis("axis").calls[static_cast<size_t>(Verb::kAllReduce)], 1);
    ledger.clear();
    EXPECT_EQ(ledger.axis("axis"), AxisLedger{});
    world.barrier();
    EXPECT_EQ(ledger.axis("axis").peers, RankSet{1 - world.rank()});
  });
}

// Ledgers of one test after the other lie at the same place.
TEST(Ledger, KnowsItsPeersWhereAnotherLedgerWas) {
  run_on_threads(2, [](Communicator& world) {
    alignas(Ledger) std::byte place[sizeof(Ledger)];
    for (int i = 0; i < 3; ++i) {
      auto* ledger = new (place) Ledger;
      world.meter(ledger, "axis");
      world.barrier();
      EXPECT_EQ(ledger->axis("axis").peers, RankSet{1 - world.rank()}) << "ledger " << i;
      world.meter(nullptr, "");
      ledger->~Ledger();
    }
  });
}

}  // namespace
}  // namespace kuafu
