// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kuafu/comm/worlds.h"

namespace kuafu {
namespace {

/// The error of a run that must end within 5 s.
template <class E>
std::string error_of(int ranks, const std::function<void(Communicator&)>& body,
                     const ThreadsOptions& options = {}) {
  const auto start = std::chrono::steady_clock::now();
  std::string what = "no error";
  try {
    run_on_threads(ranks, body, options);
  } catch (const E& e) {
    what = e.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  return what;
}

void expect_contains(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
}

void sum(Communicator& c, int64_t count, DType t = DType::kF32) {
  std::vector<double> v(static_cast<size_t>(count));
  c.all_reduce({.data = v.data(), .count = count, .dtype = t}, ReduceOp::kSum).wait();
}

TEST(ThreadFaults, ThrownErrorArrivesWithTypeAndRank) {
  const std::string what = error_of<ConfigError>(4, [](Communicator& world) {
    sum(world, 10);
    KUAFU_REQUIRE(world.rank() != 2, "two is too much");
    sum(world, 10);
  });
  EXPECT_EQ(what, "rank 2: two is too much");
}

TEST(ThreadFaults, TypedErrorKeepsItsFields) {
  try {
    run_on_threads(3, [](Communicator& world) {
      if (world.rank() == 1) throw OutOfMemory(1, 100, 200, 250);
      world.barrier();
    });
    FAIL() << "no error";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.rank, 1);
    EXPECT_EQ(e.requested, 100);
  }
}

TEST(ThreadFaults, ErrorEndsRanksThatOwnWork) {
  // Rank 0 leaves with an operation under way: its own error is reported, not the broken operation.
  const std::string what = error_of<InternalError>(2, [](Communicator& world) {
    std::vector<float> v(100000);
    Work work = world.all_reduce({.data = v.data(), .count = 100000}, ReduceOp::kSum);
    if (world.rank() == 0) throw InternalError("broken");
    world.recv({.data = v.data(), .count = 1}, 0, 0).wait();
  });
  EXPECT_EQ(what, "rank 0: broken");
}

TEST(ThreadFaults, EarlyReturnIsFoundAtOnce) {
  const std::string what = error_of<RankLost>(3, [](Communicator& world) {
    world.meter(nullptr, "data");
    sum(world, 10);
    if (world.rank() == 1) return;
    sum(world, 20);
  });
  expect_contains(
      what, {"all_reduce(f32 x 20, sum), call 1 of group 'data'", "a rank it needs has returned",
             "rank 1: has returned; last call: all_reduce(f32 x 10, sum), call 0"});
}

TEST(ThreadFaults, SkippedCollectiveNamesBothCalls) {
  const std::string what = error_of<CollectiveMismatch>(2, [](Communicator& world) {
    world.meter(nullptr, "data");
    sum(world, 1);
    if (world.rank() == 0) sum(world, 10);
    world.barrier();
  });
  expect_contains(what, {"group 'data'", "call 1", "rank 0 called all_reduce(f32 x 10, sum)",
                         "rank 1 called barrier()"});
}

TEST(ThreadFaults, SwappedVerbsNameBothCalls) {
  const std::string what = error_of<CollectiveMismatch>(4, [](Communicator& world) {
    float x = 0;
    const Buffer b{.data = &x, .count = 1};
    if (world.rank() == 3) {
      world.broadcast(b, 0).wait();
    } else {
      world.all_reduce(b, ReduceOp::kSum).wait();
    }
  });
  expect_contains(what, {"rank 3 called broadcast(f32 x 1, root 0)", "all_reduce(f32 x 1, sum)"});
}

TEST(ThreadFaults, DifferentArgumentsAreFound) {
  const auto mismatch = [](const std::function<void(Communicator&)>& body) {
    EXPECT_NE(error_of<CollectiveMismatch>(2, body), "no error");
  };
  mismatch([](Communicator& c) { sum(c, 10 + c.rank()); });
  mismatch([](Communicator& c) { sum(c, 10, c.rank() == 0 ? DType::kF32 : DType::kI32); });
  std::array<float, 2> x{};
  const Buffer b{.data = x.data(), .count = 1};
  mismatch([&](Communicator& c) { c.broadcast(b, c.rank()).wait(); });
  mismatch([&](Communicator& c) {
    c.all_reduce(b, c.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax).wait();
  });
  mismatch([](Communicator& c) {
    std::vector<float> in(3), out(3 + static_cast<size_t>(c.rank()));
    Splits splits{.send = {1, 2}, .recv = {1, 2 + c.rank()}};
    c.all_to_all({.data = out.data(), .count = 3 + c.rank()}, {.data = in.data(), .count = 3},
                 splits)
        .wait();
  });
  mismatch([](Communicator& c) { c.split([&c](int r) { return SplitKey{r * c.rank(), 0}; }); });
}

TEST(ThreadFaults, MessageOfAnotherSizeIsFound) {
  const std::string what = error_of<CollectiveMismatch>(2, [](Communicator& world) {
    std::vector<float> v(10);
    if (world.rank() == 0) world.send({.data = v.data(), .count = 10}, 1, 4).wait();
    if (world.rank() == 1) world.recv({.data = v.data(), .count = 9}, 0, 4).wait();
  });
  expect_contains(what, {"send(f32 x 10, to 1, tag 4)", "recv(f32 x 9, from 0, tag 4)"});
}

TEST(ThreadFaults, MessageNobodyReceivesIsReported) {
  const std::string what = error_of<CollectiveMismatch>(2, [](Communicator& world) {
    float x = 0;
    if (world.rank() == 0) world.send({.data = &x, .count = 1}, 1, 4).wait();
  });
  expect_contains(what, {"rank 0 called send(f32 x 1, to 1, tag 4)", "rank 1 never received it"});
}

TEST(ThreadFaults, CircularWaitOverTwoGroupsIsFound) {
  const std::string what = error_of<RankLost>(2, [](Communicator& world) {
    world.meter(nullptr, "data");
    const auto other = world.split([](int) { return SplitKey{}; });
    other->meter(nullptr, "tensor");
    sum(world.rank() == 0 ? world : *other, 8);
  });
  expect_contains(what, {"every rank waits", "group 'data'", "group 'tensor'"});
}

TEST(ThreadFaults, ReceiveWithoutSenderIsFound) {
  const std::string what = error_of<RankLost>(1, [](Communicator& world) {
    float x = 0;
    world.recv({.data = &x, .count = 1}, 0, 0).wait();
  });
  expect_contains(what, {"recv(f32 x 1, from 0, tag 0)"});
}

TEST(ThreadFaults, TimeOutPrintsWhoWaitsWhere) {
  std::atomic<bool> is_over = false;
  const std::string what = error_of<RankLost>(2,
                                              [&](Communicator& world) {
                                                if (world.rank() == 1) {
                                                  while (!is_over) std::this_thread::yield();
                                                  return;
                                                }
                                                try {
                                                  world.barrier();
                                                } catch (...) {
                                                  is_over = true;
                                                  throw;
                                                }
                                              },
                                              {.timeout = std::chrono::milliseconds(50)});
  expect_contains(what, {"nothing for 50 ms", "rank 0: waits in barrier(), call 0 of group 'world'",
                         "rank 1: is not in a call; no call so far"});
}

TEST(ThreadFaults, FirstRunLeavesTheNextOneClean) {
  error_of<ConfigError>(2, [](Communicator& world) {
    KUAFU_REQUIRE(world.rank() == 1, "zero");
    world.barrier();
  });
  EXPECT_EQ(error_of<std::exception>(2, [](Communicator& world) { sum(world, 5); }), "no error");
}

TEST(ThreadFaults, RefuseToRunOnNoRanks) {
  EXPECT_THROW(run_on_threads(0, [](Communicator&) {}), ConfigError);
}

}  // namespace
}  // namespace kuafu
