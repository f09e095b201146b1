// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "kuafu/comm/cost_model.h"
#include "kuafu/comm/simulated.h"
#include "kuafu/comm/worlds.h"
#include "tests/comm/conformance.h"
#include "tests/comm/every_verb.h"
#include "tests/comm/mpi_tests.h"
#include "tests/comm/values.h"

namespace kuafu::conformance {
namespace {

// The world of this process; main() runs the tests inside it.
Communicator* world = nullptr;
MpiCollectives collectives = MpiCollectives::kOwn;

struct Case {
  int ranks;
  Body body;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.body.name << " on " << c.ranks; }

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int ranks = 1; ranks <= world->size(); ++ranks) {
    for (const Body& body : bodies()) all.push_back({ranks, body});
  }
  return all;
}

class MpiConformance : public testing::TestWithParam<Case> {};

TEST_P(MpiConformance, Holds) {
  const int ranks = GetParam().ranks;
  const auto group = world->split([ranks](int r) { return SplitKey{r < ranks ? 0 : -1, r}; });
  if (group != nullptr) GetParam().body.run(*group);
}

struct Names {
  std::string operator()(const testing::TestParamInfo<Case>& info) const {
    return info.param.body.name + std::to_string(info.param.ranks);
  }
};

INSTANTIATE_TEST_SUITE_P(Communicator, MpiConformance, testing::ValuesIn(cases()), Names());

/// The entry of one call.
AxisLedger traffic_of(const std::function<void()>& call) {
  Ledger ledger;
  world->meter(&ledger, "axis");
  call();
  world->meter(nullptr, "world");
  return ledger.axis("axis");
}

TEST(MpiLedger, CountsOnTheWireWhatTheClosedFormsSay) {
  const int n = world->size(), r = world->rank();
  if (n == 1) GTEST_SKIP() << "one rank has no wire";
  const auto counting =
      collectives == MpiCollectives::kOwn ? Counting::kWire : Counting::kConvention;
  std::vector<float> memory(static_cast<size_t>(1 << 20) + 3), other(memory.size());
  for (const int64_t count : {int64_t{1} << 20, (int64_t{1} << 20) + 3}) {  // the ring
    const Buffer b{.data = memory.data(), .count = count};
    const auto e = traffic_of([&] { world->all_reduce(b, ReduceOp::kSum).wait(); });
    const WireTraffic ring = convention({.verb = Verb::kAllReduce, .out = b, .in = b}, n, r);
    EXPECT_EQ(e.bytes_sent, ring.sent);
    EXPECT_EQ(e.bytes_received, ring.received);
    EXPECT_EQ(e.messages % ring.messages, 0) << "whole rings of a piece each";
    EXPECT_EQ(e.wire_peers, RankSet({(r + 1) % n, (r + n - 1) % n}));
    EXPECT_EQ(e.counting, counting);
  }
  const Buffer mine{.data = other.data(), .count = 40000};
  const Buffer whole{.data = memory.data(), .count = 40000 * n};
  auto e = traffic_of([&] { world->all_gather(whole, mine).wait(); });
  EXPECT_EQ(e.bytes_received, (n - 1) * mine.bytes());
  e = traffic_of([&] { world->reduce_scatter(mine, whole, ReduceOp::kSum).wait(); });
  EXPECT_EQ(e.bytes_received, (n - 1) * mine.bytes());
  EXPECT_EQ(e.bytes_sent, (n - 1) * mine.bytes());
  e = traffic_of([&] { world->broadcast(whole, n - 1).wait(); });
  EXPECT_EQ(e.bytes_received, r == n - 1 ? 0 : whole.bytes());
  e = traffic_of([&] { world->reduce(whole, 0, ReduceOp::kSum).wait(); });
  EXPECT_EQ(e.bytes_received, r == 1 ? 0 : whole.bytes());
  EXPECT_EQ(e.calls[static_cast<size_t>(Verb::kReduce)], 1);
  e = traffic_of([&] { world->barrier(); });
  EXPECT_EQ(e.bytes_received + e.bytes_sent + e.messages, 0);
}

TEST(MpiLedger, CountsSmallAllReducesByRecursiveDoubling) {
  const int n = world->size(), r = world->rank();
  if (n == 1 || collectives == MpiCollectives::kNative) {
    GTEST_SKIP() << "the own algorithm on two ranks or more";
  }
  std::vector<float> v(64);
  const auto e = traffic_of(
      [&] { world->all_reduce({.data = v.data(), .count = 64}, ReduceOp::kSum).wait(); });
  const int m = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const int rounds = std::countr_zero(static_cast<unsigned>(m));
  const int messages = r >= 2 * (n - m) ? rounds : r % 2 == 1 ? rounds + 1 : 1;
  EXPECT_EQ(e.messages, messages);
  EXPECT_EQ(e.bytes_received, messages * 256);
}

/// Axis by axis: what stands on this rank's wire, and what it would count alone.
void expect_simulated(Transport transport, const CallSizes& sizes) {
  Ledger real, simulated;
  every_verb(*world, real, Substance::kData, sizes);
  world->meter(nullptr, "world");
  SimulatedWorld recorded(world->size(), transport);
  every_verb(*recorded.communicator(world->rank()), simulated, Substance::kNone, sizes);
  ASSERT_EQ(simulated.axes().size(), real.axes().size());
  for (const auto& [axis, e] : real.axes()) {
    const AxisLedger& s = simulated.axes().at(axis);
    EXPECT_EQ(s.bytes_sent, e.bytes_sent) << axis;
    EXPECT_EQ(s.bytes_received, e.bytes_received) << axis;
    EXPECT_EQ(s.messages, e.messages) << axis;
    EXPECT_EQ(s.wire_peers, e.wire_peers) << axis;
    EXPECT_EQ(s, e) << axis << ": calls, bytes by verb, peers, or what counted";
  }
}

// Own collectives by their messages, the library's by the convention.
TEST(MpiLedger, EqualsThatOfTheSameRankSimulated) {
  const bool is_own = collectives == MpiCollectives::kOwn;
  const Transport transport = is_own ? Transport::kMpi : Transport::kThreads;
  expect_simulated(transport, {});
  expect_simulated(transport, sizes_around_thresholds());
}

TEST(MpiLedger, CountsMessagesLiterally) {
  const int n = world->size(), r = world->rank();
  if (n == 1) GTEST_SKIP() << "one rank has no wire";
  std::vector<double> out(10), in(10);
  const auto e = traffic_of([&] {
    world
        ->send_recv({.data = out.data(), .count = 10, .dtype = DType::kF64}, (r + 1) % n,
                    {.data = in.data(), .count = 10, .dtype = DType::kF64}, (r + n - 1) % n, 0)
        .wait();
  });
  EXPECT_EQ(e.bytes_sent, 80);
  EXPECT_EQ(e.received[static_cast<size_t>(Verb::kSendRecv)], 80);
  EXPECT_EQ(e.messages, 1);
}

}  // namespace
}  // namespace kuafu::conformance

namespace kuafu::conformance {

Communicator& world_of_tests() { return *world; }

int run_mpi_tests(int argc, char** argv, MpiCollectives kind) {
  int failures = 0;
  collectives = kind;
  run_on_mpi(
      [&](Communicator& communicator) {
        world = &communicator;
        communicator.meter(nullptr, "world");
        testing::InitGoogleTest(&argc, argv);
        failures = RUN_ALL_TESTS();
      },
      kind);
  return failures;
}

}  // namespace kuafu::conformance
