// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong on devices ends every rank with an error that says what it was.

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <atomic>
#include <thread>

#include "kuafu/comm/worlds.h"
#include "tests/standin/backends.h"
#include "tests/standin/errors.h"

namespace kuafu {
namespace {

using conformance::on_a_stream;
using conformance::OnDevice;
using conformance::run_on_nccl_threads;
using conformance::Values;
using standin::error_of;
using standin::expect_contains;

using Body = std::function<void(Communicator&)>;
constexpr auto kSoon = std::chrono::milliseconds(300);

struct World {
  const char* name;
  void (*run)(int ranks, const Body& body);
};

void run_on_one_card(int ranks, const Body& body) {
  run_on_threads(ranks, on_a_stream(body), {.timeout = kSoon});
}

void run_on_nccl_ranks(int ranks, const Body& body) {
  standin::set_devices(ranks);
  run_on_nccl_threads(ranks, on_a_stream(body), {.timeout = kSoon});
}

class DeviceFaults : public testing::TestWithParam<World> {
 protected:
  void SetUp() override { standin::reset(); }
  void TearDown() override { standin::reset(); }

  template <class E>
  std::string error(int ranks, const Body& body) {
    return error_of<E>([&] { GetParam().run(ranks, body); });
  }
};

/// A sum of `count` elements whose end the host waits for by its stream alone.
void sum(Communicator& c, int64_t count) {
  Values v(DType::kF32, count, [](int64_t) { return 1.0; });
  c.all_reduce(v.buffer(), ReduceOp::kSum).wait();
  OnDevice::stream()->synchronize();
}

TEST_P(DeviceFaults, RankThatReturnsEarlyEndsTheOthers) {
  const std::string what = error<RankLost>(3, [](Communicator& world) {
    sum(world, 10);
    if (world.rank() == 1) return;
    sum(world, 20);
    world.barrier();
  });
  expect_contains(what, {"all_reduce(f32 x 20, sum)"});
}

TEST_P(DeviceFaults, RankThatThrowsIsHeard) {
  const std::string what = error<ConfigError>(3, [](Communicator& world) {
    sum(world, 10);
    KUAFU_REQUIRE(world.rank() != 1, "one is too much");
    sum(world, 20);
    world.barrier();
  });
  expect_contains(what, {"one is too much"});
}

TEST_P(DeviceFaults, OtherCallsAreFound) {
  const std::string what = error<Error>(2, [](Communicator& world) {
    Values v(DType::kF32, 8, [](int64_t) { return 1.0; });
    if (world.rank() == 0) {
      world.all_reduce(v.buffer(), ReduceOp::kSum).wait();
    } else {
      world.broadcast(v.buffer(), 0).wait();
    }
    OnDevice::stream()->synchronize();
    world.barrier();
  });
  expect_contains(what, {"f32 x 8", "called"});
}

TEST_P(DeviceFaults, SwappedCallsOfTwoGroupsAreFound) {
  const std::string what = error<Error>(2, [](Communicator& world) {
    const auto other = world.split([](int) { return SplitKey{}; });
    sum(world.rank() == 0 ? world : *other, 8);
    sum(world.rank() == 0 ? *other : world, 8);
    world.barrier();
  });
  expect_contains(what, {"all_reduce(f32 x 8, sum)"});
}

TEST_P(DeviceFaults, TimeOutEndsTheWaitForARankThatDoesNotCome) {
  std::atomic<bool> is_over = false;
  const std::string what = error<RankLost>(2, [&](Communicator& world) {
    if (world.rank() == 1) {
      while (!is_over) std::this_thread::yield();
      return;
    }
    try {
      sum(world, 8);
      world.barrier();
    } catch (...) {
      is_over = true;
      throw;
    }
  });
  expect_contains(what, {"all_reduce(f32 x 8, sum)", "300 ms"});
}

TEST_P(DeviceFaults, MessageNobodySendsIsFound) {
  const std::string what = error<RankLost>(2, [](Communicator& world) {
    Values v(DType::kF32, 8);
    if (world.rank() == 0) world.recv(v.buffer(), 1, 4).wait_host();
    world.barrier();
  });
  expect_contains(what, {"recv(f32 x 8, from 1, tag 4)"});
}

TEST_P(DeviceFaults, MessageOfAnotherSizeIsFound) {
  const std::string what = error<Error>(2, [](Communicator& world) {
    Values v(DType::kF32, 8 + world.rank());
    if (world.rank() == 0) world.send(v.buffer(), 1, 4).wait_host();
    if (world.rank() == 1) world.recv(v.buffer(), 0, 4).wait_host();
  });
  expect_contains(what, {"tag 4"});
}

// Every call of the runtime that one operation makes, failing the first time after the start.
TEST_P(DeviceFaults, FailingCallsOfTheRuntimeAreNamed) {
  for (const char* call : {"cudaEventRecord", "cudaStreamWaitEvent", "cudaEventCreateWithFlags"}) {
    SCOPED_TRACE(call);
    standin::reset();
    const std::string what = error<device::CudaError>(3, [&](Communicator& world) {
      sum(world, 10);
      world.barrier();
      if (world.rank() == 1) standin::fail(call, 1, cudaErrorIllegalAddress);
      world.barrier();
      Values v(DType::kF32, 10);
      world.all_reduce(v.buffer(), ReduceOp::kSum).wait_host();
      world.barrier();
    });
    expect_contains(what, {call, "illegal memory access"});
  }
}

TEST_P(DeviceFaults, RunAfterAFailedOneIsClean) {
  error<ConfigError>(2, [](Communicator& world) {
    KUAFU_REQUIRE(world.rank() == 1, "zero");
    sum(world, 10);
    world.barrier();
  });
  standin::reset();
  EXPECT_EQ(error<std::exception>(2, [](Communicator& world) { sum(world, 5); }), "no error");
}

INSTANTIATE_TEST_SUITE_P(Worlds, DeviceFaults,
                         testing::Values(World{"one_card", run_on_one_card},
                                         World{"nccl", run_on_nccl_ranks}),
                         [](const auto& info) { return info.param.name; });

class OneCardFaults : public testing::Test {
 protected:
  void SetUp() override { standin::reset(); }
  void TearDown() override { standin::reset(); }
};

TEST_F(OneCardFaults, FailingKernelIsNamed) {
  standin::fail("launch_combine", 1, cudaErrorIllegalAddress);
  const std::string what =
      error_of<device::CudaError>([] { run_on_one_card(3, [](auto& world) { sum(world, 10); }); });
  expect_contains(what, {"launch_combine", "illegal memory access"});
}

TEST_F(OneCardFaults, FullCardIsOutOfMemoryOfARank) {
  const std::string what = error_of<OutOfMemory>([] {
    run_on_one_card(2, [](Communicator& world) {
      world.barrier();
      if (world.rank() == 1) {
        const device::StreamMemory memory(int64_t{1} << 40, *OnDevice::stream(), world.rank());
      }
      world.barrier();
    });
  });
  expect_contains(what, {"rank 1"});
}

TEST_F(OneCardFaults, HostAndDeviceBuffersOfOneCallAreFound) {
  const std::string what = error_of<CollectiveMismatch>([] {
    run_on_one_card(2, [](Communicator& world) {
      std::vector<float> on_host(8);
      Values v(DType::kF32, 8);
      world
          .all_reduce(world.rank() == 0 ? v.buffer() : Buffer{.data = on_host.data(), .count = 8},
                      ReduceOp::kSum)
          .wait();
    });
  });
  expect_contains(what, {"all_reduce(f32 x 8, sum)"});
}

class NcclFaults : public OneCardFaults {};

TEST_F(NcclFaults, FailingCallIsNamed) {
  standin::fail("ncclAllReduce", 1, ncclInvalidUsage);
  const std::string what =
      error_of<Error>([] { run_on_nccl_ranks(3, [](auto& world) { sum(world, 10); }); });
  expect_contains(what, {"ncclAllReduce", "invalid usage"});
}

TEST_F(NcclFaults, ErrorOfAnotherRankEndsTheWait) {
  const std::string what = error_of<RankLost>([] {
    run_on_nccl_ranks(2, [](Communicator& world) {
      sum(world, 10);
      world.barrier();
      if (world.rank() == 1) return;
      standin::fail("ncclCommGetAsyncError", 1, ncclRemoteError);
      sum(world, 20);
      world.barrier();
    });
  });
  expect_contains(what, {"remote process exited"});
}

TEST_F(NcclFaults, MoreRanksThanDevicesAreRefused) {
  standin::set_devices(2);
  const std::string what = error_of<Unavailable>([] { run_on_nccl_threads(3, [](auto&) {}); });
  expect_contains(what, {"3 NCCL ranks on a machine with 2 GPUs"});
}

}  // namespace
}  // namespace kuafu
