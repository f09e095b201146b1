// SPDX-License-Identifier: Apache-2.0
#include "kuafu/checkpoint/pace.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "kuafu/checkpoint/safetensors.h"
#include "tests/record/support.h"

namespace kuafu {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

TEST(Pace, RestsForItsShareAfterAPart) {
  Pace pace;
  pace.rest();  // the first part begins
  for (int part = 0; part < 2; ++part) {
    std::this_thread::sleep_for(milliseconds(2));
    const auto begin = Clock::now();
    pace.rest();
    EXPECT_GE(Clock::now() - begin, milliseconds(2) * (Pace::kShare - 1));
  }
}

TEST(Pace, HurryEndsARestAndAllOthers) {
  constexpr int kParts = 100;
  constexpr auto kPart = milliseconds(4);
  Pace pace;
  pace.rest();
  const auto begin = Clock::now();
  std::thread writer([&] {
    for (int part = 0; part < kParts; ++part) {
      std::this_thread::sleep_for(kPart);
      pace.rest();
    }
  });
  std::this_thread::sleep_for(2 * kPart);  // in the first rest
  pace.hurry();
  writer.join();
  EXPECT_LT(Clock::now() - begin, kParts * kPart * (Pace::kShare - 1));  // twelve seconds
}

TEST(Pace, ChangesNoByteOfAFile) {
  const test::TemporaryFolder folder;
  const std::vector<uint8_t> bytes(2 * Pace::kPartBytes + 5, 7);
  const std::vector<TensorBytes> tensors = {
      {"a", DType::kU8, {static_cast<int64_t>(bytes.size())}, bytes.data()},
      {"none", DType::kF32, {0}, nullptr},
      {"b", DType::kU8, {3}, bytes.data()}};
  Pace pace;
  write_safetensors(folder / "paced", tensors, {{"who", "rank 3"}}, &pace);
  write_safetensors(folder / "at once", tensors, {{"who", "rank 3"}});
  EXPECT_EQ(test::read_text(folder / "paced"), test::read_text(folder / "at once"));
}

}  // namespace
}  // namespace kuafu
