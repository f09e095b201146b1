// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kuafu/comm/worlds.h"
#include "kuafu/device/device.h"
#include "tests/comm/values.h"

namespace kuafu {
namespace {

using conformance::Values;

TEST(Nccl, IsRefusedWithTheReasonWhereItCannotRun) {
  bool has_run = false;
  try {
    run_on_nccl([&](Communicator&) { has_run = true; });
    EXPECT_TRUE(has_run);
  } catch (const Unavailable& e) {
    EXPECT_NE(std::string(e.what()).find("NCCL"), std::string::npos) << e.what();
    EXPECT_EQ(device::num_devices(), 0);
  }
}

TEST(Nccl, OneRankRunsEveryVerb) {
  if (device::num_devices() == 0) GTEST_SKIP() << device::why_none();
  run_on_nccl([](Communicator& world) {
    EXPECT_EQ(world.size(), 1);
    const device::DeviceStream stream;
    constexpr int64_t kCount = 1000;
    for (const DType t : conformance::kAllTypes) {
      Values v(t, kCount, [](int64_t i) { return conformance::value(0, i); }), back(t, kCount);
      const int64_t bytes = kCount * size_of(t);
      const device::Memory a(bytes, 0), b(bytes, 0);
      const auto buffer = [&](const device::Memory& m) {
        return Buffer{.data = m.data(),
                      .count = kCount,
                      .dtype = t,
                      .place = Place::kDevice,
                      .stream = stream.handle()};
      };
      device::copy(a.data(), v.buffer().data, bytes, stream);
      world.broadcast(buffer(a), 0).wait();
      world.reduce(buffer(a), 0, ReduceOp::kMax).wait();
      world.all_reduce(buffer(a), ReduceOp::kSum).wait();
      world.all_gather(buffer(b), buffer(a)).wait();
      world.reduce_scatter(buffer(a), buffer(b), ReduceOp::kMin).wait();
      world.all_to_all(buffer(b), buffer(a)).wait();
      world.all_to_all(buffer(b), buffer(b)).wait();
      world.send_recv(buffer(b), 0, buffer(a), 0, 0).wait();
      world.barrier();
      const auto alone = world.split([](int) { return SplitKey{}; });
      alone->all_reduce(buffer(a), ReduceOp::kSum).wait_host();
      device::copy(back.buffer().data, a.data(), bytes, stream);
      stream.synchronize();
      expect_values(
          back, [](int64_t i) { return conformance::value(0, i); }, "through every verb");
    }
    float on_host = 3;  // what is on the host goes through the host
    world.all_reduce({.data = &on_host, .count = 1}, ReduceOp::kSum).wait();
    EXPECT_EQ(on_host, 3);
  });
}

}  // namespace
}  // namespace kuafu
