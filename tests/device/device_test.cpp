// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kuafu/comm/reduction.h"

namespace kuafu::device {
namespace {

TEST(Device, SaysWhyThereIsNone) {
  if (num_devices() > 0) {
    EXPECT_EQ(why_none(), "");
    EXPECT_THROW(use(num_devices()), Unavailable);
    return;
  }
  EXPECT_NE(why_none(), "");
  EXPECT_THROW(use(0), Unavailable);
  EXPECT_THROW(DeviceStream(), Unavailable);
  EXPECT_THROW(Event(), Unavailable);
  EXPECT_THROW(Memory(8, 0), Unavailable);
  EXPECT_THROW(PinnedMemory(8, 0), Unavailable);
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << why_none();
  }
};

TEST_F(OnDevice, CopiesThroughPinnedMemory) {
  constexpr int64_t kBytes = 1000;
  const DeviceStream stream;
  const Memory memory(kBytes, 0);
  const PinnedMemory there(kBytes, 0), back(kBytes, 0);
  for (int64_t i = 0; i < kBytes; ++i) static_cast<uint8_t*>(there.data())[i] = i % 251;
  copy(memory.data(), there.data(), kBytes, stream);
  copy(back.data(), memory.data(), kBytes, stream);
  stream.synchronize();
  EXPECT_EQ(std::memcmp(there.data(), back.data(), kBytes), 0);
}

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16,
                            DType::kI64, DType::kI32, DType::kU8};

/// Bits of some numbers of the type, none of which is a NaN; others for every seed.
std::vector<std::byte> some(DType dtype, int64_t count, int seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const double x = (1.0 / static_cast<double>(i % 1013 + 3) - 0.1) * (seed % 3 - 1.3);
    const auto put = [&](auto value) {
      std::memcpy(bytes.data() + i * size_of(dtype), &value, sizeof(value));
    };
    if (dtype == DType::kF64) put(x);
    if (dtype == DType::kF32) put(static_cast<float>(x));
    if (dtype == DType::kBF16) put(to_bf16(static_cast<float>(x)));
    if (dtype == DType::kF16) put(to_f16(static_cast<float>(x)));
    if (dtype == DType::kI64) put((int64_t{1} << 62) + i * seed);
    if (dtype == DType::kI32) put(static_cast<int32_t>((1 << 30) + i * seed));
    if (dtype == DType::kU8) put(static_cast<uint8_t>(i * seed + 200));
  }
  return bytes;
}

/// Combines `sources` arrays from element `first` on, into two of them and one more, on the device and
/// on the host: the same bits, and none outside.
void expect_same(DType dtype, Combine how, ReduceOp op, size_t sources, int64_t first,
                 int64_t count) {
  const int64_t all = count + 2 * first, bytes = all * size_of(dtype);
  const DeviceStream stream;
  std::vector<std::vector<std::byte>> host;
  std::vector<std::unique_ptr<Memory>> device;
  for (size_t r = 0; r <= sources; ++r) {
    host.push_back(some(dtype, all, static_cast<int>(r)));
    device.push_back(std::make_unique<Memory>(bytes, 0));
    copy(device.back()->data(), host.back().data(), bytes, stream);
  }
  std::vector<const void*> from, device_from;
  std::vector<void*> into, device_into;
  const auto at = [&](void* data) {
    return static_cast<std::byte*>(data) + first * size_of(dtype);
  };
  for (size_t r = 0; r <= sources; ++r) {
    if (r < sources) from.push_back(at(host[r].data()));
    if (r < sources) device_from.push_back(at(device[r]->data()));
    if (r != 0 && r + 1 < sources) continue;
    into.push_back(at(host[r].data()));
    device_into.push_back(at(device[r]->data()));
  }
  kuafu::combine(dtype, op, from, into, count);
  combine(dtype, how, device_from, device_into, count, stream);
  for (size_t r = 0; r <= sources; ++r) {
    std::vector<std::byte> back(host[r].size());
    copy(back.data(), device[r]->data(), bytes, stream);
    stream.synchronize();
    EXPECT_TRUE(back == host[r]) << to_string(dtype) << ", " << sources << " sources, element "
                                 << first << ", " << count << " elements, array " << r;
  }
}

TEST_F(OnDevice, CombinesToTheBitsOfTheHost) {
  for (const DType dtype : kTypes) {
    for (const size_t sources : {1, 2, 3, 8, 64}) {
      for (const int64_t first : {0, 1, 16}) {
        for (const int64_t count : {1, 17, 4096}) {
          expect_same(dtype, Combine::kSum, ReduceOp::kSum, sources, first, count);
          expect_same(dtype, Combine::kMax, ReduceOp::kMax, sources, first, count);
          expect_same(dtype, Combine::kMin, ReduceOp::kMin, sources, first, count);
        }
      }
    }
    expect_same(dtype, Combine::kSum, ReduceOp::kSum, 4, 0, 3'000'000);
  }
  const std::vector<const void*> too_many(kMostArrays + 1);
  EXPECT_THROW(combine(DType::kF32, Combine::kSum, too_many, {}, 1, DeviceStream()), ConfigError);
}

TEST_F(OnDevice, EventsOrderStreams) {
  const DeviceStream first, second;
  constexpr int64_t kBytes = 64 << 20;
  const Memory memory(kBytes, 0), other(kBytes, 0);
  Event start, end;
  start.record(first);
  copy(other.data(), memory.data(), kBytes, first);
  end.record(first);
  end.hold(second);
  second.synchronize();
  EXPECT_TRUE(end.is_reached());
  EXPECT_GT(end.ms_since(start), 0);
}

TEST_F(OnDevice, RefusesMoreMemoryThanThereIs) {
  try {
    const Memory memory(int64_t{1} << 50, 7);
    FAIL() << "no error";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.rank, 7);
    EXPECT_EQ(e.requested, int64_t{1} << 50);
  }
}

}  // namespace
}  // namespace kuafu::device
