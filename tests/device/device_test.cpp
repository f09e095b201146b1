// SPDX-License-Identifier: Apache-2.0
#include "kuafu/device/device.h"

#include <gtest/gtest.h>

#include <cstring>
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
  EXPECT_THROW(Stream(), Unavailable);
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
  const Stream stream;
  const Memory memory(kBytes, 0);
  const PinnedMemory there(kBytes, 0), back(kBytes, 0);
  for (int64_t i = 0; i < kBytes; ++i) static_cast<uint8_t*>(there.data())[i] = i % 251;
  copy(memory.data(), there.data(), kBytes, stream);
  copy(back.data(), memory.data(), kBytes, stream);
  stream.synchronize();
  EXPECT_EQ(std::memcmp(there.data(), back.data(), kBytes), 0);
}

/// Adds two arrays of bits on the device and on the host.
template <class T>
void expect_same_sums(DType dtype, const std::vector<T>& a, const std::vector<T>& b) {
  const Stream stream;
  const auto count = static_cast<int64_t>(a.size());
  const int64_t bytes = count * size_of(dtype);
  const Memory into(bytes, 0), from(bytes, 0);
  copy(into.data(), a.data(), bytes, stream);
  copy(from.data(), b.data(), bytes, stream);
  add(dtype, into.data(), from.data(), count, stream);
  std::vector<T> sums(a.size()), expected = a;
  copy(sums.data(), into.data(), bytes, stream);
  stream.synchronize();
  accumulate(dtype, ReduceOp::kSum, expected.data(), b.data(), count);
  EXPECT_EQ(sums, expected) << to_string(dtype);
}

TEST_F(OnDevice, AddsLikeTheHost) {
  std::vector<double> a64, b64;
  std::vector<float> a32, b32;
  std::vector<uint16_t> a16, b16, a_half, b_half;
  for (int i = 0; i < 3'000'000; ++i) {
    const double a = 1.0 / (i + 3), b = 0.37 * (i % 17);
    a64.push_back(a);
    b64.push_back(b);
    a32.push_back(static_cast<float>(a));
    b32.push_back(static_cast<float>(b));
    a16.push_back(to_bf16(static_cast<float>(a)));
    b16.push_back(to_bf16(static_cast<float>(b)));
    a_half.push_back(to_f16(static_cast<float>(a)));
    b_half.push_back(to_f16(static_cast<float>(b)));
  }
  expect_same_sums(DType::kF64, a64, b64);
  expect_same_sums(DType::kF32, a32, b32);
  expect_same_sums(DType::kBF16, a16, b16);
  expect_same_sums(DType::kF16, a_half, b_half);
  EXPECT_THROW(add(DType::kI32, nullptr, nullptr, 1, Stream()), ConfigError);
}

TEST_F(OnDevice, EventsOrderStreams) {
  const Stream first, second;
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
