// SPDX-License-Identifier: Apache-2.0
#include "kuafu/comm/ledger.h"

#include <gtest/gtest.h>

#include "kuafu/comm/trace.h"
#include "kuafu/comm/worlds.h"

namespace kuafu {
namespace {

/// All verbs once, on the world and on two kinds of subgroups; with data or without.
void every_verb(Communicator& world, Ledger& ledger, bool has_data) {
  world.meter(&ledger, "world");
  std::vector<std::byte> memory(1 << 16);
  int64_t used = 0;
  const auto buffer = [&](int64_t count, DType t = DType::kF32) {
    Buffer b{.data = has_data ? memory.data() + used : nullptr, .count = count, .dtype = t};
    used += (b.bytes() + 7) / 8 * 8;
    return b;
  };
  const auto use = [&](Communicator& c) {
    used = 0;
    const int n = c.size(), next = (c.rank() + 1) % n, prev = (c.rank() + n - 1) % n;
    for (const int64_t count : {0, 1, 3, 101}) {
      c.broadcast(buffer(count), n - 1).wait();
      c.reduce(buffer(count, DType::kF64), n / 2, ReduceOp::kSum).wait();
      c.all_reduce(buffer(count, DType::kBF16), ReduceOp::kMax).wait();
      c.all_gather(buffer(count * n), buffer(count)).wait();
      c.reduce_scatter(buffer(count), buffer(count * n), ReduceOp::kSum).wait();
      c.all_to_all(buffer(count * n), buffer(count * n)).wait();
      c.send_recv(buffer(count), next, buffer(count), prev, 0).wait();
      Work sent = c.send(buffer(count), next, 1);
      c.recv(buffer(count), prev, 1).wait();
      sent.wait();
    }
    Splits uneven;
    int64_t send_total = 0, recv_total = 0;
    for (int r = 0; r < n; ++r) {
      send_total += uneven.send.emplace_back((c.rank() + 2 * r) % 3);
      recv_total += uneven.recv.emplace_back((r + 2 * c.rank()) % 3);
    }
    c.all_to_all(buffer(recv_total), buffer(send_total), uneven).wait();
    c.barrier();
  };
  use(world);
  const auto pairs = world.split([](int r) { return SplitKey{r / 2, -r}; });
  pairs->meter(&ledger, "pairs");
  use(*pairs);
  const auto most = world.split([](int r) { return SplitKey{r == 1 ? -1 : 0, 0}; });
  if (most != nullptr) {
    most->meter(&ledger, "most");
    use(*most);
  }
}

TEST(Ledger, OfSimulatedRanksEqualsThatOfThreads) {
  for (const int n : {1, 2, 3, 5, 8}) {
    std::vector<Ledger> real(static_cast<size_t>(n)), simulated(static_cast<size_t>(n));
    run_on_threads(n, [&](Communicator& world) {
      every_verb(world, real[static_cast<size_t>(world.rank())], true);
    });
    SimulatedWorld world(n);
    for (int r = n - 1; r >= 0; --r) {
      every_verb(*world.communicator(r), simulated[static_cast<size_t>(r)], false);
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
      every_verb(world, ledgers[static_cast<size_t>(world.rank())], true);
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

TEST(Ledger, OfOneRankHasCallsOnly) {
  Ledger ledger;
  const auto self = make_self();
  every_verb(*self, ledger, true);
  const AxisLedger& e = ledger.axis("world");
  EXPECT_EQ(e.calls[static_cast<size_t>(Verb::kAllReduce)], 4);
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

}  // namespace
}  // namespace kuafu
