// SPDX-License-Identifier: Apache-2.0
//
// What the stand-in promises: orders hold where CUDA has them, and only there.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <future>

#include "kuafu/device/device.h"
#include "tests/standin/control.h"
#include "tests/standin/stream.h"

namespace kuafu {
namespace {

class StandIn : public testing::Test {
 protected:
  void SetUp() override { standin::reset(); }
  void TearDown() override { standin::reset(); }

  // Holds the stream up until the promise is kept.
  static void block(const device::DeviceStream& stream, std::promise<void>& until) {
    standin::queue_of(static_cast<cudaStream_t>(stream.handle()))->push([&until] {
      until.get_future().wait();
    });
  }
};

float read(const void* from, const device::DeviceStream& stream) {
  float value = 0;
  device::copy(&value, from, sizeof value, stream);
  stream.synchronize();
  return value;
}

TEST_F(StandIn, MemoryIsPoisonedWhenItIsTakenAndWhenItIsGivenBack) {
  const device::DeviceStream stream;
  void* late = nullptr;
  {
    const device::Memory memory(8, 0);
    EXPECT_TRUE(std::isnan(read(memory.data(), stream)));
    const float one = 1;
    device::copy(memory.data(), &one, sizeof one, stream);
    EXPECT_EQ(read(memory.data(), stream), 1);
    late = memory.data();
  }
  EXPECT_TRUE(std::isnan(read(late, stream)));
  EXPECT_EQ(standin::bytes_in_use(), 0);
}

TEST_F(StandIn, StreamsAreInOrderAndApart) {
  const device::DeviceStream slow, fast;
  const device::Memory memory(4, 0);
  const float one = 1;
  std::promise<void> go;
  block(slow, go);
  device::copy(memory.data(), &one, sizeof one, slow);
  EXPECT_TRUE(std::isnan(read(memory.data(), fast)));
  go.set_value();
  EXPECT_EQ(read(memory.data(), slow), 1);
}

TEST_F(StandIn, EventsOrderStreams) {
  const device::DeviceStream slow, fast;
  const device::Memory memory(4, 0);
  const float one = 1;
  std::promise<void> go;
  device::Event event;
  EXPECT_TRUE(event.is_reached());  // nothing was recorded
  block(slow, go);
  device::copy(memory.data(), &one, sizeof one, slow);
  event.record(slow);
  event.hold(fast);
  EXPECT_FALSE(event.is_reached());
  float value = 0;
  device::copy(&value, memory.data(), sizeof value, fast);
  go.set_value();
  fast.synchronize();
  EXPECT_EQ(value, 1);
}

TEST_F(StandIn, StreamMemoryIsGivenBackInOrder) {
  const device::DeviceStream stream;
  std::promise<void> go;
  block(stream, go);
  { const device::StreamMemory memory(8, stream, 0); }
  EXPECT_EQ(standin::bytes_in_use(), 8);
  go.set_value();
  stream.synchronize();
  EXPECT_EQ(standin::bytes_in_use(), 0);
}

TEST_F(StandIn, StreamWithoutANameIsAStreamToo) {
  const device::StreamView none(nullptr);
  const device::Memory memory(4, 0);
  const float one = 1;
  device::copy(memory.data(), &one, sizeof one, none);
  device::Event event;
  event.record(none);
  event.synchronize();
  const device::DeviceStream stream;
  EXPECT_EQ(read(memory.data(), stream), 1);
}

TEST_F(StandIn, FaultsComeWithTheCallTheyAreFor) {
  const device::DeviceStream stream;
  standin::fail("cudaStreamSynchronize", 2, cudaErrorIllegalAddress);
  EXPECT_NO_THROW(stream.synchronize());
  EXPECT_THROW(stream.synchronize(), device::CudaError);
  EXPECT_NO_THROW(stream.synchronize());
}

TEST_F(StandIn, MachineMayHaveNoDevices) {
  standin::set_devices(0);
  EXPECT_EQ(device::num_devices(), 0);
  EXPECT_NE(device::why_none(), "");
  EXPECT_THROW(device::DeviceStream(), Unavailable);
}

}  // namespace
}  // namespace kuafu
